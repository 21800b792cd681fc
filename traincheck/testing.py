"""Assertions about recorded runs, for pytest and unittest."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from traincheck.diff.difference import Difference
from traincheck.diff.library import diff
from traincheck.report.difference.forms import write_text


def assert_runs_same(
    a: str | Path, b: str | Path, *, until: str | int = "", **options: Any
) -> Difference:
    """Fail if two recorded runs differ; the message is the report of `traincheck diff`.

    Args:
        a: directory of the run that is right, or came first.
        b: directory of the other; a run that resumes A is aligned with it.
        until: the step before which the comparison ends: a number, ``"resume"`` or ``"resume+3"``.
        options: others of `traincheck.diff`, such as ``rtol``.

    Raises:
        AssertionError: they differ, or have nothing in common that could be compared.
        TraceFormatError: a directory is not a run.
    """
    found = diff(a, b, until=until, **options)
    if not found.same:
        text = io.StringIO()
        write_text(found, text)
        raise AssertionError(text.getvalue())
    return found
