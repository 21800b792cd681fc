"""Errors a user can act on: what happened, the value, how to fix it.

This module does not print or exit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

_ALIKE = 0.5  # edits for each character, at most, of a name that is suggested
_LOOK_ALIKE = 0.3
_TWINS = [set(pair) for pair in ("O0", "o0", "I1", "l1", "lI", "S5", "B8", "Z2", "G6", "-_")]


class TraincheckError(Exception):
    """Base of every error that traincheck raises on purpose.

    Args:
        message: one sentence that names the offending value (a path, an option, a version).
        fix: what the user can do about it, as an imperative sentence.
    """

    exit_code = 2

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


class UsageError(TraincheckError):
    """An option or argument has an invalid value. Correct the command line."""


class LaunchError(TraincheckError):
    """The program to record could not be started: check its path and permissions."""


class TraceFormatError(TraincheckError):
    """A directory or file is not a trace, or was written by a newer schema.

    Point to a run directory.
    """


class InvariantFormatError(TraincheckError):
    """A file is not an invariant file of this schema. Make one with traincheck-infer."""


class OutputError(TraincheckError):
    """A result could not be written: check that the path is writable and the disk has room."""


class MissingDependencyError(TraincheckError):
    """An optional package is needed for this operation; the fix names the install command."""


class TrainingHalted(BaseException):
    """Training was stopped at a finding of severity error, because of ``halt=True``.

    Raised in the thread that trains, when the step that shows the finding has ended, or before the
    next checkpoint is written. It is not an ``Exception``, so that a loop that catches those stops.
    """


class BaselineError(TraincheckError):
    """A file is not a baseline of this schema. Make one with traincheck check --write-baseline."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name with the fewest edits; of those, the one with the longest common prefix."""

    def likeness(other: str) -> tuple[float, int, str]:
        pairs = enumerate(zip(name, other))
        begun = next((n for n, (a, b) in pairs if a != b), min(len(name), len(other)))
        return _edits(name, other), -begun, other

    return min(known, key=likeness)


def suggested(name: str, known: Collection[str]) -> str:
    """``did you mean wandb? ``, or nothing if no known name is like ``name``."""
    like = nearest(name, known) if known else ""
    is_like = bool(like) and _edits(name, like) <= len(name) * _ALIKE
    return f"did you mean {like}? " if is_like else ""


def _edits(name: str, other: str) -> float:
    """Edit distance: swapped neighbours are one edit; look-alikes and a missing end are less."""
    row = [float(n) for n in range(len(other) + 1)]
    before: list[float] = []
    for i, a in enumerate(name):
        last, row = row, [i + 1.0]
        for j, b in enumerate(other):
            is_same = a == b
            swap = _LOOK_ALIKE if {a, b} in _TWINS else float(not is_same)
            best = min(last[j] + swap, last[j + 1] + 1, row[j] + 1)
            if i and j and (a, b) == (other[j - 1], name[i - 1]):
                best = min(best, before[j - 1] + 1)
            row.append(best)
        before = last
    rest = len(other) - len(name)
    return rest * _LOOK_ALIKE / 2 if rest > 0 and other.startswith(name) else row[-1]
