"""An exported run as record batches. Row groups that hold no chosen step are not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincheck.errors import TraceFormatError
from traincheck.schema.layout import SCHEMA_VERSION
from traincheck.schema.reading import open_regular
from traincheck.store.columnar import (
    ROW_GROUP,
    TABLE_FILES,
    arrow_schema,
    default_of,
    file_name,
    pyarrow_modules,
)
from traincheck.store.row_choice import RowChoice
from traincheck.store.runs import is_run

if TYPE_CHECKING:
    import pyarrow as pa

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
            MissingDependencyError: pyarrow is not installed.
        """
        arrow, parquet = pyarrow_modules()
        path = self._path / file_name(choice.kind)
        if not path.exists():
            return  # no such event occurred
        try:
            with open_regular(path) as file:
                yield from _chosen(arrow, parquet.ParquetFile(file), choice, path)
        except (ValueError, TypeError, LookupError, OSError) as error:
            raise TraceFormatError(
                f"{path} is not part of an exported trace: {error}", fix=_AGAIN
            ) from error


def _chosen(arrow: Any, file: Any, choice: RowChoice, path: Path) -> Iterator[pa.RecordBatch]:
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
                else arrow.array([default_of(choice.kind, field.name)] * len(batch), field.type)
                for field in schema
            ]
            whole = arrow.record_batch(columns, schema=schema)
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
