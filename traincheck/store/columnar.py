"""A trace as Parquet files, one per kind of event, and back without loss. Bounded memory both ways.

Each scalar is a column, a tensor summary is spread over several columns, nested values are JSON
text.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import NODEFAULT
from msgspec.structs import astuple, fields

from traincheck.errors import OutputError, TraceFormatError
from traincheck.schema.events import EVENT_TYPES, Event, ParamGroup
from traincheck.schema.files import dump_json, open_regular, parse_json
from traincheck.schema.layout import SCHEMA_VERSION
from traincheck.schema.values import TensorSummary
from traincheck.store.manifest import is_run
from traincheck.store.reader import TraceReader
from traincheck.store.row_choice import RowChoice

ROW_GROUP = 20_000  # events of a kind in memory at once
ORDER = "order"  # column: position in the merged order of the whole run
_PROGRESS_EVERY = 5_000
_TYPES: dict[str, type[Event]] = {t.kind: t for t in EVENT_TYPES}
INTEGER, _TEXT, _FLAG, SHAPE, JSON = "int64", "string", "bool", "shape", "json"
_HEADER = {
    "seq": INTEGER,
    "time_ns": INTEGER,
    "step": INTEGER,
    "stage": _TEXT,
    "rank": INTEGER,
    "stream": _TEXT,
}
_FORMS = {"Int64": INTEGER, "str": _TEXT, "bool": _FLAG, "tuple[Int64, ...]": SHAPE}


def file_name(kind: str) -> str:
    """``calls.parquet`` for the kind ``call``."""
    if kind.endswith("s"):
        return f"{kind}.parquet"
    return f"{kind}es.parquet" if kind.endswith("ch") else f"{kind}s.parquet"


TABLE_FILES = frozenset(map(file_name, _TYPES))


def export_parquet(
    run: TraceReader | Path | str,
    out: Path | str,
    *,
    progress: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """Write a run as Parquet files into folder ``out``. Returns the number of rows of each kind.

    Args:
        run: a run directory or its reader.
        out: created if missing; files of an earlier export are replaced.
        progress: called from time to time with the number of exported events.

    Raises:
        TraceFormatError: ``run`` is not a trace.
        OutputError: ``out`` cannot be written.
    """
    reader = run if isinstance(run, TraceReader) else TraceReader(run)
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _Tables(out, facts_of(reader)) as tables:
            for number, event in enumerate(reader.events()):
                tables.add(number, event)
                if progress is not None and number % _PROGRESS_EVERY == 0:
                    progress(number)
            tables.finish()
    except OSError as error:
        raise OutputError(
            f"cannot write Parquet files to {out}: {error.strerror or error}",
            fix="name a writable folder, on a disk with free space",
        ) from error
    return tables.rows


def read_parquet(folder: Path | str) -> Iterator[Event]:
    """The events of an export, in the order of the run.

    Raises:
        TraceFormatError: ``folder`` contains no export.
    """
    found = [(kind, Path(folder) / file_name(kind)) for kind in _TYPES]
    tables = [_rows(kind, path) for kind, path in found if path.exists()]
    if not tables:
        raise TraceFormatError(
            f"{folder} is not an exported trace",
            fix="export one with traincheck trace export RUN -o FOLDER",
        )
    for _, event in heapq.merge(*tables, key=lambda row: row[0]):
        yield event


def facts_of(reader: TraceReader) -> dict[str, str]:
    """The metadata of each file."""
    run_id = reader.manifest.run_id if reader.manifest is not None else reader.path.name
    return {"traincheck.schema_version": str(SCHEMA_VERSION), "traincheck.run_id": run_id}


def _form(kind: str, name: str, annotation: str) -> str:
    """The storage of a field. annotation: as in schema/events.py."""
    if kind == "rng" and name == "seed":
        return JSON  # may need 64 bits without a sign, or more
    return _FORMS.get(annotation.removesuffix(" | None"), JSON)


def layout(kind: str) -> dict[str, str]:
    """Column -> form of one kind: INTEGER, SHAPE, JSON, "string" or "bool"."""
    columns = {ORDER: INTEGER, **_HEADER}
    event_type: Any = _TYPES[kind]
    for name in event_type.__struct_fields__[len(_HEADER) :]:
        if name == "summary":
            columns.update({f"summary_{part}": form for part, form in _SUMMARY.items()})
        else:
            columns[name] = _form(kind, name, _annotation(event_type, name))
    return columns


def _annotation(record_type: Any, name: str) -> str:
    hint = record_type.__annotations__[name]
    return str(getattr(hint, "__forward_arg__", hint))


_SUMMARY = {
    name: _form("", name, _annotation(TensorSummary, name))
    for name in TensorSummary.__struct_fields__
}


def arrow_schema(kind: str) -> pa.Schema:
    """The Arrow schema of one kind."""
    types = {
        INTEGER: pa.int64(),
        _TEXT: pa.string(),
        _FLAG: pa.bool_(),
        SHAPE: pa.list_(pa.int64()),
        JSON: pa.string(),
    }
    return pa.schema([(name, types[form]) for name, form in layout(kind).items()])


def default_of(kind: str, column: str) -> Any:
    """The cell of a column that an older export lacks: the default of its field, else None."""
    field = next((field for field in fields(_TYPES[kind]) if field.name == column), None)
    if field is None:  # of a summary, or the header
        return None
    found = field.default if field.default_factory is NODEFAULT else field.default_factory()
    if found is NODEFAULT:
        return None
    return _dumps(found) if layout(kind)[column] == JSON else found


class Columns:
    """Events of one kind, collected column by column and returned as Arrow tables.

    Args:
        kind: of the events.
        facts: metadata of the tables.
    """

    def __init__(self, kind: str, facts: Mapping[str, str]) -> None:
        self.forms = layout(kind)
        self.schema = arrow_schema(kind).with_metadata(dict(facts))
        self._columns: list[list[Any]] = [[] for _ in self.forms]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, order: int, event: Event) -> None:
        """Append an event. order: its position in the run."""
        cells = _cells(order, event)
        for column, form, cell in zip(self._columns, self.forms.values(), cells):
            column.append(_dumps(cell) if form == JSON else cell)

    def take(self) -> pa.RecordBatch:
        """The events that were added since the last call."""
        arrays = [
            pa.array(column, type=field.type) for column, field in zip(self._columns, self.schema)
        ]
        self._columns = [[] for _ in self.forms]
        return pa.record_batch(arrays, schema=self.schema)


class _Table:
    """A Parquet file of one kind."""

    def __init__(self, out: Path, kind: str, facts: Mapping[str, str]) -> None:
        self.path = out / file_name(kind)
        self.rows = 0
        self._partial = self.path.with_suffix(".parquet.part")
        self._columns = Columns(kind, facts)
        self._writer: pq.ParquetWriter | None = None

    def add(self, order: int, event: Event) -> None:
        self._columns.add(order, event)
        self.rows += 1
        if len(self._columns) >= ROW_GROUP:
            self.flush()

    def flush(self) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._partial, self._columns.schema, compression="zstd")
        if len(self._columns):
            self._writer.write_batch(self._columns.take())

    def finish(self) -> None:
        """Write the rest and rename the file to its final name."""
        self.flush()
        if self._writer is not None:
            self._writer.close()
        self._partial.replace(self.path)

    def discard(self) -> None:
        """Remove an unfinished file."""
        if self._writer is not None:
            with suppress(OSError):  # fails on a full disk
                self._writer.close()
        self._partial.unlink(missing_ok=True)


class _Tables:
    """One table per kind that occurs. Removes incomplete files on exit."""

    def __init__(self, out: Path, facts: Mapping[str, str]) -> None:
        self._out = out
        self._facts = facts
        self._tables: dict[str, _Table] = {}

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each kind that occurs."""
        return {kind: table.rows for kind, table in self._tables.items()}

    def __enter__(self) -> _Tables:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for table in self._tables.values():
            table.discard()

    def finish(self) -> None:
        """All events are written: rename the files, remove older ones."""
        for table in self._tables.values():
            table.flush()  # all of them before renaming any: this may fail
        for table in self._tables.values():
            table.finish()
        for stale in _TYPES.keys() - self._tables.keys():
            (self._out / file_name(stale)).unlink(missing_ok=True)

    def add(self, order: int, event: Event) -> None:
        table = self._tables.get(event.kind)
        if table is None:
            table = self._tables[event.kind] = _Table(self._out, event.kind, self._facts)
        table.add(order, event)


def _cells(order: int, event: Event) -> Iterator[Any]:
    """The values of one row, in the order of the layout."""
    yield order
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name == "summary":
            yield from (None,) * len(_SUMMARY) if value is None else astuple(value)
        else:
            yield value


def _dumps(value: Any) -> str | None:
    """JSON text; null for None and for a sequence that the line did not have."""
    return None if value is None or value == () else dump_json(value, default=astuple).decode()


def _rows(kind: str, path: Path) -> Iterator[tuple[int, Event]]:
    event_type: Any = _TYPES[kind]
    forms = layout(kind)
    try:
        with open_regular(path) as file:
            table = pq.ParquetFile(file)
            present = set(table.schema_arrow.names)  # an older export may lack some
            nested = [name for name, form in forms.items() if form == JSON and name in present]
            batches: Iterable[Any] = table.iter_batches(ROW_GROUP // 10)
            for batch in batches:
                for row in batch.to_pylist():
                    for name in nested:
                        row[name] = None if row[name] is None else parse_json(row[name].encode())
                    yield row.pop(ORDER), _event(event_type, row)
    except (ValueError, TypeError, LookupError, OSError) as error:
        raise TraceFormatError(
            f"{path} is not part of an exported trace: {error}",
            fix="export the trace again with traincheck trace export",
        ) from error


def _event(event_type: Any, row: dict[str, Any]) -> Event:
    if "summary_dtype" in row:
        # An older export lacks the columns of newer fields
        parts = {name: row.pop(f"summary_{name}") for name in _SUMMARY if f"summary_{name}" in row}
        if parts["dtype"] is not None:
            row["summary"] = TensorSummary(**{**parts, "shape": tuple(parts["shape"])})
    if "groups" in row:
        row["groups"] = tuple(ParamGroup(*group) for group in row["groups"] or ())
    for field in fields(event_type):
        if field.default == () and row.get(field.name, ()) is None:
            row[field.name] = ()
    event: Event = event_type(**row)
    return event


_AGAIN = "export the trace again with traincheck trace export"
_VERSION = b"traincheck.schema_version"


def is_export(path: Path) -> bool:
    """Whether a folder looks like an export: it has a table of events, and is no run."""
    return (
        path.is_dir() and any((path / name).is_file() for name in TABLE_FILES) and not is_run(path)
    )


class ParquetExport:
    """The folder of an export.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def batches(self, choice: RowChoice) -> Iterator[pa.RecordBatch]:
        """The chosen rows, in the order of the run, read as they are asked for.

        Raises:
            TraceFormatError: a file is not part of an export, or a newer traincheck wrote it.
        """
        path = self._path / file_name(choice.kind)
        if not path.exists():
            return  # no such event occurred
        try:
            with open_regular(path) as file:
                yield from _chosen(pq.ParquetFile(file), choice, path)
        except (ValueError, TypeError, LookupError, OSError) as error:
            raise TraceFormatError(
                f"{path} is not part of an exported trace: {error}", fix=_AGAIN
            ) from error


def _chosen(file: Any, choice: RowChoice, path: Path) -> Iterator[pa.RecordBatch]:
    version = (file.schema_arrow.metadata or {}).get(_VERSION)
    if version is None or not version.isdigit():
        raise TraceFormatError(
            f"{path} is not part of an exported trace: it names no version", fix=_AGAIN
        )
    if int(version) > SCHEMA_VERSION:
        raise TraceFormatError(
            f"{path} has schema version {int(version)}, this traincheck reads {SCHEMA_VERSION}",
            fix="update traincheck",
        )
    schema = arrow_schema(choice.kind)
    known = [name for name in schema.names if name in file.schema_arrow.names]
    groups = [
        index
        for index in range(file.num_row_groups)
        if choice.may_take(*_steps_of(file.metadata.row_group(index)))
    ]
    if not groups:
        return
    for batch in file.iter_batches(ROW_GROUP, row_groups=groups, columns=known):
        whole = batch
        if len(known) < len(schema):  # the columns of this version that an older export lacks
            columns = [
                batch[field.name]
                if field.name in known
                else pa.array([default_of(choice.kind, field.name)] * len(batch), field.type)
                for field in schema
            ]
            whole = pa.record_batch(columns, schema=schema)
        kept = choice.rows_of(whole.cast(schema))
        if len(kept):
            yield kept


def _steps_of(group: Any) -> tuple[int | None, int | None]:
    """The lowest and the highest step of a row group; None if the file does not tell."""
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == "step":
            found = column.statistics
            if found is not None and found.has_min_max:
                return found.min, found.max
    return None, None
