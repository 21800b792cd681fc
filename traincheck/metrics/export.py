"""The metrics of a run as a file or as event files, for `traincheck trace export`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traincheck.errors import OutputError
from traincheck.store.reader import TraceReader

from .formats import save_as
from .trace import read_run
from .trackers import TensorBoard, send

METRIC_VALUES = "parquet"
_FILES = {
    METRIC_VALUES: ("metric-values.parquet", ".parquet"),
    "csv": ("metrics.csv", ".csv"),
    "json": ("metrics.json", ".json"),
    "hdf5": ("metrics.h5", ".h5"),
}


@dataclass(frozen=True, slots=True)
class Written:
    """The written file or folder, and the number of its numbers."""

    path: Path
    rows: int


def has_metrics(rows: Mapping[str, int]) -> bool:
    """Whether a run has metrics, by its numbers of events of each kind."""
    return bool(rows.get("metrics"))


def export_metrics(reader: TraceReader, folder: Path | str, form: str) -> Written:
    """Write the metrics of a run into a folder.

    Args:
        reader: of the run.
        folder: created if missing.
        form: "parquet", "csv", "json", "hdf5" or "tensorboard".

    Raises:
        UsageError: the run has no metrics.
        OutputError: the folder cannot be written.
        MissingDependencyError: a package for this format is not installed.
    """
    metrics = read_run(reader)
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot write to {path}: {error.strerror or error}", fix="name a writable folder"
        ) from error
    if form == "tensorboard":
        send(metrics, TensorBoard(path))
    else:
        name, suffix = _FILES[form]
        path /= name
        save_as(metrics, path, suffix)
    return Written(path, len(metrics.rows()))
