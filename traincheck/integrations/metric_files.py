"""`traincheck.read_metrics`: the metrics of a run, or of a file that was saved."""

from __future__ import annotations

from pathlib import Path

from traincheck.metrics.formats import load
from traincheck.metrics.series import Metrics
from traincheck.metrics.trace import read_run


def read_metrics(path: str | Path) -> Metrics:
    """The metrics of a recorded run, or of a file with the ending .csv, .json, .parquet or .h5.

    Args:
        path: a run directory, or a file.

    Raises:
        TraceFormatError: it cannot be read, or is something else.
        UsageError: there are no metrics, or no format is known for its name.
        MissingDependencyError: a package for this format is not installed.
    """
    return read_run(path) if Path(path).is_dir() else load(path)
