"""A recorded run as tables, one for each kind of event: pandas DataFrames, with Arrow below.

No event is read until a table is requested. Rows are chosen while the run is read, in record
batches, so memory holds the chosen rows and one batch. A training process never loads this module,
nor pandas and pyarrow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import pandas as pd
import pyarrow as pa

from traincheck.schema.metrics.sums import COLUMNS
from traincheck.store.columnar import (
    JSON,
    ROW_GROUP,
    SHAPE,
    Columns,
    ParquetExport,
    arrow_schema,
    is_export,
    layout,
)
from traincheck.store.reader import TraceReader
from traincheck.store.row_choice import Names, RowChoice, Steps, chosen, texts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traincheck.store.manifest import Manifest

# Columns and their dtypes
METRIC_COLUMNS: dict[str, Any] = {
    "order": "Int64",
    "step": "Int64",
    "rank": "Int64",
    "stream": "string",
    "evaluates": "boolean",
    "name": "string",
    "combine": "string",
    "weight": "Float64",
    "value": "Float64",
    **{column: "Float64" for column in COLUMNS},
    "count": "Int64",
    "zeros": "Int64",
    "nonfinite": "Int64",
}
_NAMES = ("names", "combine", "sums", "values")


def metric_frame(
    batches: Iterable[pa.RecordBatch], choice: RowChoice, patterns: tuple[str, ...]
) -> pd.DataFrame:
    """The table of the rows that are chosen.

    Args:
        batches: all events of kind "metrics": earlier ones name the numbers of later ones.
        choice: of steps and ranks.
        patterns: of names; none for all.
    """
    columns: dict[str, list[Any]] = {name: [] for name in METRIC_COLUMNS}
    for row in _metric_rows(batches, choice, patterns):
        for name, cells in columns.items():
            cells.append(row.get(name))
    made = {n: pd.array(cells, dtype=METRIC_COLUMNS[n]) for n, cells in columns.items()}
    return pd.DataFrame(made)


def _metric_rows(
    batches: Iterable[pa.RecordBatch], choice: RowChoice, patterns: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """The cells of each tensor and each metric of the events that are chosen."""
    known: dict[tuple[int, str], tuple[dict[str, str], dict[str, str]]] = defaultdict(
        lambda: ({}, {})
    )
    for batch in batches:
        for event in batch.to_pylist():
            nested = {key: orjson.loads(event[key]) if event[key] else [] for key in _NAMES}
            names, combine = known[event["rank"], event["stream"].partition("-")[0]]
            names.update(nested["names"] or {})
            combine.update(nested["combine"] or {})
            is_in_steps = choice.steps is None or event["step"] in choice.steps
            if not is_in_steps or (choice.ranks and event["rank"] not in choice.ranks):
                continue
            head = {key: event[key] for key in ("order", "step", "rank", "stream", "evaluates")}
            cells = [(str(number), dict(zip(COLUMNS, sums))) for number, *sums in nested["sums"]]
            cells += [
                (
                    str(number),
                    {"weight": weight, "value": math.nan if value is None else float(value)},
                )
                for number, weight, value in nested["values"]
            ]
            for key, numbers in cells:
                name = names.get(key)  # None: the event that names it is lost
                if name is not None and (
                    not patterns or any(fnmatchcase(name, p) for p in patterns)
                ):
                    yield {**head, "name": name, "combine": combine.get(key, "mean"), **numbers}


class _Source(Protocol):
    """A run on disk, in one of its forms."""

    def batches(self, choice: RowChoice) -> Iterator[pa.RecordBatch]:
        """The chosen rows, in the order of the run, read as they are asked for."""


class RecordedRun:
    """The tables of one run. Each call of a method reads the run again.

    A row is one event, in the order of the run. A column is one field of it, as described in
    docs/trace-format.md. Columns of integers, flags and text are nullable pandas dtypes, so that no
    number is rounded. Shapes are tuples, and nested values such as the arguments of a call are
    Python objects. ``order`` is the position of the event in the whole run.

    Arguments of the methods, all optional:

    - ``steps``: a ``range``, a ``slice`` such as ``slice(0, 10)``, or one number.
    - ``name``: a pattern with ``*`` and ``?``, or several of them.
    - ``rank``: a rank, or several.

    Args:
        path: a run directory, finished or still growing, or a folder that
        ``traincheck trace export`` has written.

    Raises:
        TraceFormatError: ``path`` is neither, or a newer traincheck wrote it.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._reader: TraceReader | None = None
        self._source: _Source
        if is_export(self._path):
            self._source = ParquetExport(self._path)
        else:
            self._reader = TraceReader(path, may_be_empty=True)
            self._source = _Lines(self._reader)

    def __repr__(self) -> str:
        return f"traincheck.open({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The run directory, or the folder of the export."""
        return self._path

    @property
    def manifest(self) -> Manifest | None:
        """The manifest: how the run was recorded; None if it is missing, and of an export."""
        return self._reader.manifest if self._reader else None

    @property
    def skipped(self) -> int:
        """Lines that the last reading could not use; 0 for an export."""
        return self._reader.skipped if self._reader else 0

    def calls(
        self,
        *,
        steps: Steps | None = None,
        name: Names | None = None,
        rank: int | Sequence[int] | None = None,
    ) -> pd.DataFrame:
        """Calls, each when it ended.

        Args:
            steps: only those in these steps, e.g. ``range(10, 20)`` or ``slice(10, 20)``. None for
                all, also those of processes without steps.
            name: only those whose api, family or module matches this pattern, e.g.
                ``"*zero_grad"`` or ``"Net.fc1"``, or one of several patterns.
            rank: only those of this rank, or of these.

        Raises:
            TraceFormatError: the run cannot be read.
            UsageError: an argument is not usable.
        """
        return self.table("call", steps=steps, name=name, rank=rank)

    def states(
        self,
        *,
        steps: Steps | None = None,
        name: Names | None = None,
        role: Names | None = None,
        rank: int | Sequence[int] | None = None,
    ) -> pd.DataFrame:
        """Changes of parameters, gradients, buffers and optimizer state.

        Args:
            steps: as for `calls`.
            name: only variables whose name matches this pattern, e.g. ``"Net.fc1.*"``.
            role: only variables of this role, or of these: ``"parameter"``, ``"gradient"``,
                ``"buffer"``, ``"optimizer_state"``.
            rank: as for `calls`.

        Raises:
            TraceFormatError, UsageError: as for `calls`.
        """
        return self.table("state", steps=steps, name=name, role=role, rank=rank)

    def steps(
        self, *, steps: Steps | None = None, rank: int | Sequence[int] | None = None
    ) -> pd.DataFrame:
        """Ends of training steps, with their counters.

        Args:
            steps: as for `calls`.
            rank: as for `calls`.

        Raises:
            TraceFormatError, UsageError: as for `calls`.
        """
        return self.table("step", steps=steps, rank=rank)

    def batches(
        self,
        *,
        steps: Steps | None = None,
        name: Names | None = None,
        rank: int | Sequence[int] | None = None,
    ) -> pd.DataFrame:
        """Batches of data loaders.

        Args:
            steps: as for `calls`.
            name: only those of loaders whose name matches this pattern, e.g. ``"loader0"``.
            rank: as for `calls`.

        Raises:
            TraceFormatError, UsageError: as for `calls`.
        """
        return self.table("batch", steps=steps, name=name, rank=rank)

    def metrics(
        self,
        *,
        steps: Steps | None = None,
        name: Names | None = None,
        rank: int | Sequence[int] | None = None,
    ) -> pd.DataFrame:
        """Numbers that ``traincheck monitor`` has recorded: a row for each name, step and process.

        Of a tensor, a row has sums of its elements, which add up over ranks: count, sum, squares,
        zeros, nonfinite, absolutes, and cubes and fourths in older runs; minimum and maximum; and
        mean, m2, m3, m4, the mean and sums of powers of the deviations from it. Of other
        metrics it has a weight and a value; that of a mean is the weighted sum.

        Args:
            steps: as for `calls`.
            name: only those whose name matches this pattern, e.g. ``"gradient/Net.fc1.*"``.
            rank: as for `calls`.

        Raises:
            TraceFormatError, UsageError: as for `calls`.
        """
        choice = chosen("metrics", steps=steps, rank=rank)
        patterns = texts_of("name", name)
        # All of them: earlier events name the numbers of later ones
        return metric_frame(self._source.batches(chosen("metrics")), choice, patterns)

    def table(
        self,
        kind: str,
        *,
        steps: Steps | None = None,
        name: Names | None = None,
        role: Names | None = None,
        rank: int | Sequence[int] | None = None,
    ) -> pd.DataFrame:
        """Events of any kind, such as ``"optimizer"``, ``"collective"`` or ``"mark"``.

        Args:
            kind: of the events, as in docs/trace-format.md.
            steps: as for `calls`.
            name: as for `calls`. Events of some kinds, such as steps, have no name.
            role: as for `states`; other kinds have no roles.
            rank: as for `calls`.

        Raises:
            TraceFormatError, UsageError: as for `calls`.
        """
        choice = chosen(kind, steps=steps, name=name, role=role, rank=rank)
        found = pa.Table.from_batches(self._source.batches(choice), schema=arrow_schema(kind))
        forms = layout(kind)
        dtypes = {
            pa.int64(): pd.Int64Dtype(),
            pa.bool_(): pd.BooleanDtype(),
            pa.string(): pd.StringDtype(),
        }
        frame: pd.DataFrame = found.to_pandas(types_mapper=dtypes.get)
        for column, form in forms.items():
            if form in (JSON, SHAPE):
                made = orjson.loads if form == JSON else tuple
                values = [
                    None if value is None else made(value) for value in found[column].to_pylist()
                ]
                frame[column] = pd.Series(values, dtype=object)
        return frame

    def arrow(
        self,
        kind: str,
        *,
        steps: Steps | None = None,
        name: Names | None = None,
        role: Names | None = None,
        rank: int | Sequence[int] | None = None,
    ) -> pa.RecordBatchReader:
        """Like `table`, as a stream of Arrow record batches, for tables that exceed memory.

        The run is read as batches are asked for. Nested values are JSON text. DuckDB and Polars
        read the result directly.

        Args:
            kind: as for `table`.
            steps: as for `calls`.
            name: as for `table`.
            role: as for `table`.
            rank: as for `calls`.

        Raises:
            TraceFormatError, UsageError: as for `calls`.
        """
        choice = chosen(kind, steps=steps, name=name, role=role, rank=rank)
        batches = self._source.batches(choice)
        reader: pa.RecordBatchReader = pa.RecordBatchReader.from_batches(
            arrow_schema(kind), batches
        )
        return reader


def open(path: Path | str) -> RecordedRun:
    """The tables of a recorded run; no event is read yet.

    Args:
        path: a run directory, or a folder that ``traincheck trace export`` has written.

    Raises:
        TraceFormatError: ``path`` is neither, or a newer traincheck wrote it.
    """
    return RecordedRun(path)


class _Lines:
    """A run as its recording wrote it: JSON lines."""

    def __init__(self, reader: TraceReader) -> None:
        self._reader = reader

    def batches(self, choice: RowChoice) -> Iterator[pa.RecordBatch]:
        """The chosen rows, in the order of the run, read as they are asked for."""
        columns = Columns(choice.kind, {})
        kind, takes = choice.kind, choice.takes
        for order, event in enumerate(self._reader.events()):
            if event.kind == kind and takes(event):
                columns.add(order, event)
                if len(columns) >= ROW_GROUP:
                    yield columns.take()
        if len(columns):
            yield columns.take()
