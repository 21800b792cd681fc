"""Errors a user can act on: what happened, the value, how to fix it.

This module does not print or exit.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
    """The known name that is most similar to ``name``; a common prefix counts most."""

    def likeness(other: str) -> tuple[int, float, str]:
        pairs = enumerate(zip(name, other))
        beginning = next((i for i, (a, b) in pairs if a != b), min(len(name), len(other)))
        return (beginning, difflib.SequenceMatcher(None, name, other).ratio(), other)

    return max(known, key=likeness)
