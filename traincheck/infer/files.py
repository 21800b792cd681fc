"""The files of inference: invariants, dropped hypotheses and statistics.

They are written next to each other: ``invariant.json``, and its name with ``.dropped.json`` and
``.stats`` appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traincheck.errors import UsageError
from traincheck.infer.confidence import DEFAULT_CONFIDENCE
from traincheck.infer.dropped import dropped_json, dropped_path
from traincheck.infer.engine import InferResult
from traincheck.infer.select import Limits
from traincheck.infer.statistics import RunStatistics
from traincheck.infer.statistics_file import read_statistics, statistics_path, write_statistics
from traincheck.schema.files import write_json
from traincheck.schema.invariant_file import read_created_with, write_invariants
from traincheck.version import VERSION


def save(result: InferResult, output: str | Path, limits: Limits) -> None:
    """Write an invariant file and the two files next to it.

    Raises:
        OutputError: the place is not writable or the disk is full; the message names the path.
    """
    path = Path(output)
    created_with = {
        "traincheck": VERSION,
        "confidence": limits.confidence,
        "min_examples": limits.min_examples,
    }
    write_invariants(path, result.invariants, created_with, result.runs)
    if path.exists() and not path.is_file():
        return  # a pipe or a device has no files next to it
    write_json(dropped_path(path), dropped_json(result.dropped))
    write_statistics(statistics_path(path), result.statistics)


def limits_of(
    paths: Sequence[str | Path], confidence: float | None = None, examples: int | None = None
) -> Limits:
    """Limits as given, or the strictest of the files.

    Raises:
        InvariantFormatError: a file is no invariant file.
    """
    created_with = [read_created_with(path) for path in paths]
    if confidence is None:
        confidence = max(_numbers(created_with, "confidence"), default=DEFAULT_CONFIDENCE)
        examples = examples or int(max(_numbers(created_with, "min_examples"), default=0)) or None
    limits = Limits(confidence=confidence)
    return limits if examples is None else Limits(confidence=confidence, examples=examples)


def _numbers(created_with: Sequence[dict[str, object]], key: str) -> list[float]:
    values = [one.get(key) for one in created_with]
    return [value for value in values if isinstance(value, (int, float)) and value]


def known_runs(path: str | Path) -> list[RunStatistics]:
    """The statistics of an invariant file.

    Raises:
        UsageError: there are none.
        InvariantFormatError: they cannot be used.
    """
    beside = statistics_path(path)
    if not (Path(path).exists() or beside.exists()):
        raise UsageError(
            f"{path} does not exist", fix="without --update, its invariants are learned again"
        )
    if not beside.exists():
        raise UsageError(
            f"{path} has no statistics beside it: {beside} does not exist",
            fix="keep the .stats file with the invariants, or learn again from all runs",
        )
    return read_statistics(beside)
