"""A recorded run as pandas DataFrames, one for each kind of event.

No event is read until a table is requested, and then only its events are kept. pandas and pyarrow
are imported at that moment: a training process never loads this module.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from traincheck.errors import MissingDependencyError, UsageError
from traincheck.schema.events import Event
from traincheck.store.columnar import (
    JSON,
    ROW_GROUP,
    SHAPE,
    Columns,
    facts_of,
)
from traincheck.store.reader import TraceReader

if TYPE_CHECKING:
    import pandas as pd

    from traincheck.store.manifest import Manifest

# The fields that the argument ``name`` is compared with
_NAMED = {"call": ("api", "family", "module"), "state": ("name",), "batch": ("loader",)}


class RecordedRun:
    """The tables of one run. Each call of a method reads the run again.

    A row is one event, in the order of the run. A column is one field of it, as described in
    docs/trace-format.md. Columns of integers, flags and text are nullable pandas dtypes, so that no
    number is rounded. Shapes are tuples, and nested values such as the arguments of a call are
    Python objects. ``order`` is the position of the event in the whole run.

    Args:
        path: the run directory.

    Raises:
        TraceFormatError: ``path`` is not a run, or a newer traincheck wrote it.
    """

    def __init__(self, path: Path | str) -> None:
        self._reader = TraceReader(path, may_be_empty=True)

    def __repr__(self) -> str:
        return f"traincheck.open({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._reader.path

    @property
    def manifest(self) -> Manifest | None:
        """The manifest: how the run was recorded; None if it is missing."""
        return self._reader.manifest

    @property
    def skipped(self) -> int:
        """Lines that the last reading could not use."""
        return self._reader.skipped

    def calls(self, *, steps: range | int | None = None, name: str | None = None) -> pd.DataFrame:
        """Calls, each when it ended.

        Args:
            steps: only those in these steps, e.g. ``range(10, 20)``. None for all.
            name: only those whose api, family or module matches this pattern, e.g.
                ``"*zero_grad"`` or ``"Net.fc1"``.

        Raises:
            TraceFormatError: the run cannot be read.
            UsageError: ``steps`` is neither a range nor a number.
            MissingDependencyError: pandas or pyarrow is not installed.
        """
        return self._table("call", steps, name)

    def states(self, *, steps: range | int | None = None, name: str | None = None) -> pd.DataFrame:
        """Changes of parameters, gradients, buffers and optimizer state.

        Args:
            steps: as for `calls`.
            name: only variables whose name matches this pattern, e.g. ``"Net.fc1.*"``.

        Raises:
            TraceFormatError, UsageError, MissingDependencyError: as for `calls`.
        """
        return self._table("state", steps, name)

    def steps(self, *, steps: range | int | None = None) -> pd.DataFrame:
        """Ends of training steps, with their counters.

        Args:
            steps: as for `calls`.

        Raises:
            TraceFormatError, UsageError, MissingDependencyError: as for `calls`.
        """
        return self._table("step", steps, None)

    def batches(self, *, steps: range | int | None = None, name: str | None = None) -> pd.DataFrame:
        """Batches of data loaders.

        Args:
            steps: as for `calls`.
            name: only those of loaders whose name matches this pattern, e.g. ``"loader0"``.

        Raises:
            TraceFormatError, UsageError, MissingDependencyError: as for `calls`.
        """
        return self._table("batch", steps, name)

    def _table(self, kind: str, steps: range | int | None, name: str | None) -> pd.DataFrame:
        wanted = _range(steps)
        pandas, arrow = _imported()
        columns = Columns(kind, facts_of(self._reader))
        found = [columns.take()]  # without rows: the columns are always the same
        for order, event in enumerate(self._reader.events()):
            if event.kind == kind and _is_wanted(event, wanted, name):
                columns.add(order, event)
                if len(columns) >= ROW_GROUP:
                    found.append(columns.take())
        found.append(columns.take())
        return _frame(pandas, arrow, arrow.concat_tables(found), columns.forms)


def open(path: Path | str) -> RecordedRun:
    """The tables of a recorded run; no event is read yet.

    Args:
        path: the run directory.

    Raises:
        TraceFormatError: ``path`` is not a run, or a newer traincheck wrote it.
    """
    return RecordedRun(path)


def _range(steps: range | int | None) -> range | None:
    if isinstance(steps, int) and not isinstance(steps, bool):
        return range(steps, steps + 1)
    if steps is None or isinstance(steps, range):
        return steps
    raise UsageError(
        f"steps is {steps!r}, which is neither a range nor a number",
        fix="use steps=range(10, 20) for steps 10 to 19, or steps=3",
    )


def _is_wanted(event: Event, steps: range | None, name: str | None) -> bool:
    if steps is not None and (event.step is None or event.step not in steps):
        return False
    if name is None:
        return True
    texts = (getattr(event, field, None) for field in _NAMED[event.kind])
    return any(text is not None and fnmatchcase(text, name) for text in texts)


def _frame(pandas: Any, arrow: Any, table: Any, forms: dict[str, str]) -> pd.DataFrame:
    dtypes = {
        arrow.int64(): pandas.Int64Dtype(),
        arrow.bool_(): pandas.BooleanDtype(),
        arrow.string(): pandas.StringDtype(),
    }
    frame: pd.DataFrame = table.to_pandas(types_mapper=dtypes.get)
    for column, form in forms.items():
        if form in (JSON, SHAPE):
            made = orjson.loads if form == JSON else tuple
            values = [None if value is None else made(value) for value in table[column].to_pylist()]
            frame[column] = pandas.Series(values, dtype=object)
    return frame


def _imported() -> tuple[Any, Any]:
    try:
        import pandas
        import pyarrow
    except ImportError as error:
        raise MissingDependencyError(
            f"tables need the packages pandas and pyarrow: {error}",
            fix="pip install pandas pyarrow",
        ) from error
    return pandas, pyarrow
