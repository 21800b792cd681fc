"""What the text report says of checks that could not be decided."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from tests.builders import MLP, TraceBuilder
from tests.learning import report_of
from traincheck.check.verdicts import reasons
from traincheck.report.text_report import write_text
from traincheck.schema.findings import Presentation, Report


def lacking(count: int, *, verbose: bool = False) -> str:
    """The report on a run in which as many checks lacked something of their own."""
    run = TraceBuilder().process().model("Net", MLP).optimizer().steps(5).build()
    found: Report = report_of([], run)
    why = {f"TC{i}": f"the trace was recorded without calls of f{i}" for i in range(count)}
    notes = ("the program was killed", *reasons(why))
    report = replace(
        found, notes=notes, unobservable=why, presentation=Presentation(verbose=verbose)
    )
    out = io.StringIO()
    write_text(report, out)
    return out.getvalue()


def test_few_reasons_are_told_one_by_one() -> None:
    assert lacking(3).count("1 check not observable: the trace was recorded without calls") == 3


def test_many_reasons_are_one_line() -> None:
    text = " ".join(lacking(25).split())
    assert text.count("not observable:") == 1
    assert "25 checks not observable: the trace lacks events that they need (25 reasons;" in text
    assert "the program was killed" in text, "other notes stay"


@pytest.mark.parametrize("count", [3, 25])
def test_verbose_tells_all(count: int) -> None:
    assert lacking(count, verbose=True).count("1 check not observable: ") == count
