"""Metrics as files: CSV, JSON, Parquet, HDF5; and back, with equal numbers."""

from __future__ import annotations

import csv
import importlib
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import orjson

from traincheck.errors import MissingDependencyError, OutputError, TraceFormatError, UsageError
from traincheck.schema.files import open_regular, parse_json, read_regular

from .series import Metrics

_HEADER = ["step", "key", "value"]
_KEYS, _STEPS, _VALUES = "keys", "steps", "values"


def write_csv(metrics: Metrics, file: IO[str]) -> None:
    """Columns step, key, value; numbers in as many digits as give the same number again."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(_HEADER)
    rows.writerows((step, key, repr(value)) for step, key, value in metrics.rows())


def write_json(metrics: Metrics, file: IO[str]) -> None:
    """Key -> step -> number; NaN and infinities are text."""
    record = {
        key: {str(s): v if math.isfinite(v) else str(v) for s, v in sorted(values.items())}
        for key, values in metrics.items()
    }
    file.write(orjson.dumps(record, option=orjson.OPT_INDENT_2).decode() + "\n")


def save(metrics: Metrics, path: Path | str) -> None:
    """Write a file of the format that its name ends with: .csv, .json, .parquet, .h5 or .hdf5.

    Raises:
        UsageError: the name ends otherwise.
        OutputError: the file cannot be written.
        MissingDependencyError: a package for this format is not installed.
    """
    path = Path(path)
    if path.suffix not in _WRITERS:
        raise UsageError(f"no format is known for {path.name!r}", fix=_suffixes())
    save_as(metrics, path, path.suffix)


def save_as(metrics: Metrics, path: Path, suffix: str) -> None:
    """Like `save`, in the format of a suffix such as ``.h5``, whatever the name is."""
    writer = _WRITERS[suffix]
    try:
        writer(metrics, path)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}",
            fix="name a file in a writable folder, on a disk with free space",
        ) from error


def load(path: Path | str) -> Metrics:
    """The metrics of a file that `save` has written.

    Raises:
        UsageError: no format is known for its name.
        TraceFormatError: it is not such a file, or cannot be read.
        MissingDependencyError: a package for this format is not installed.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise UsageError(f"no format is known for {path.name!r}", fix=_suffixes())
    return load_as(path, path.suffix)


def load_as(path: Path, suffix: str) -> Metrics:
    """Like `load`, in the format of a suffix."""
    reader = _READERS[suffix]
    try:
        return reader(path)
    except MissingDependencyError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error) as error:
        raise TraceFormatError(
            f"{path} has no metrics: {error}", fix="write it again with traincheck trace export"
        ) from error


def _suffixes() -> str:
    return f"end it with one of {', '.join(_WRITERS)}"


def of_rows(rows: Iterable[tuple[int, str, float]]) -> Metrics:
    """Metrics from step, key and number."""
    series: dict[str, dict[int, float]] = defaultdict(dict)
    for step, key, value in rows:
        series[key][step] = value
    return Metrics(series)


def _save_csv(metrics: Metrics, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        write_csv(metrics, file)


def _load_csv(path: Path) -> Metrics:
    text = read_regular(path).decode("utf-8")
    rows = csv.reader(text.splitlines(keepends=True))
    if next(rows, None) != _HEADER:
        raise ValueError(f"the first line is not {','.join(_HEADER)}")
    return of_rows((int(step), key, float(value)) for step, key, value in rows)


def _save_json(metrics: Metrics, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        write_json(metrics, file)


def _load_json(path: Path) -> Metrics:
    record = parse_json(read_regular(path))
    return Metrics(
        {k: {int(s): float(v) for s, v in values.items()} for k, values in record.items()}
    )


def _save_parquet(metrics: Metrics, path: Path) -> None:
    import pyarrow as arrow  # not at the top: training with a monitor loads this module
    from pyarrow import parquet

    rows = metrics.rows()
    columns = {
        "step": arrow.array([step for step, _, _ in rows], arrow.int64()),
        "key": arrow.array([key for _, key, _ in rows], arrow.string()).dictionary_encode(),
        "value": arrow.array([value for _, _, value in rows], arrow.float64()),
    }
    parquet.write_table(arrow.table(columns), path)


def _load_parquet(path: Path) -> Metrics:
    from pyarrow import parquet

    with open_regular(path) as file:
        table = parquet.ParquetFile(file).read(columns=_HEADER)
    return of_rows(zip(*(table[name].to_pylist() for name in _HEADER)))


def _save_hdf5(metrics: Metrics, path: Path) -> None:
    """Keys contain slashes, so they are data and not names of groups."""
    h5py = _h5py()
    ends, steps, values = [], list[int](), list[float]()
    for series in metrics.values():
        steps += sorted(series)
        values += [series[step] for step in sorted(series)]
        ends.append(len(steps))
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "traincheck metrics"
        file.create_dataset(_KEYS, data=list(metrics), dtype=h5py.string_dtype())
        file.create_dataset("ends", data=ends, dtype="int64")
        file.create_dataset(_STEPS, data=steps, dtype="int64")
        file.create_dataset(_VALUES, data=values, dtype="float64")


def _load_hdf5(path: Path) -> Metrics:
    h5py = _h5py()
    with open_regular(path) as stream, h5py.File(stream, "r") as file:
        keys = [key.decode() for key in file[_KEYS][:]]
        ends, steps, values = (file[n][:].tolist() for n in ("ends", _STEPS, _VALUES))
    starts = [0, *ends]
    return Metrics(
        {key: dict(zip(steps[a:b], values[a:b])) for key, a, b in zip(keys, starts, ends)}
    )


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise MissingDependencyError(
            f"HDF5 files need the package h5py: {error}", fix="pip install 'traincheck[hdf5]'"
        ) from error


_WRITERS = {
    ".csv": _save_csv,
    ".json": _save_json,
    ".parquet": _save_parquet,
    ".h5": _save_hdf5,
    ".hdf5": _save_hdf5,
}
_READERS = {
    ".csv": _load_csv,
    ".json": _load_json,
    ".parquet": _load_parquet,
    ".h5": _load_hdf5,
    ".hdf5": _load_hdf5,
}
