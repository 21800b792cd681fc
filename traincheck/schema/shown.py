"""Findings and reports in a line, and the fields that all who show them read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from traincheck.schema.events import Event
from traincheck.schema.words import counted, printable


class ShownFinding(Protocol):
    """The shown fields of a finding."""

    @property
    def code(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def first_step(self) -> int | None: ...
    @property
    def title(self) -> str: ...
    @property
    def expected(self) -> str: ...
    @property
    def observed(self) -> str: ...
    @property
    def likely_cause(self) -> str: ...
    @property
    def fix(self) -> str: ...
    @property
    def variables(self) -> tuple[str, ...]: ...
    @property
    def evidence(self) -> tuple[Event, ...]: ...


class ShownReport(Protocol):
    """The shown fields of a report."""

    @property
    def is_empty(self) -> bool: ...
    @property
    def steps(self) -> int: ...
    @property
    def findings(self) -> Sequence[ShownFinding]: ...
    @property
    def tally(self) -> Mapping[str, int]: ...


def finding_line(finding: ShownFinding) -> str:
    """``TC101 error at step 0: No optimizer holds Net.head.weight``."""
    step = finding.first_step
    at = "before the first step" if step is None else f"at step {step:,}"
    return printable(f"{finding.code} {finding.severity} {at}: {finding.title}")


def report_line(report: ShownReport) -> str:
    """``2 findings in 87 steps``, or that nothing was checked."""
    if report.is_empty:
        return "nothing was checked"
    return f"{tally_text(report.tally)} in {counted(report.steps, 'step')}"


def tally_text(tally: Mapping[str, int], *, advice: bool = True) -> str:
    """``2 findings, 1 observation, 3 pieces of advice``; ``no findings`` stands first."""
    return ", ".join(tally_parts(tally, advice=advice))


def tally_parts(tally: Mapping[str, int], *, advice: bool = True) -> list[str]:
    """The parts of `tally_text`."""
    found = counted(tally["finding"], "finding") if tally["finding"] else "no findings"
    others = [counted(tally["observation"], "observation")] if tally["observation"] else []
    others += [advice_text(tally["advice"])] if advice and tally["advice"] else []
    return [found, *others]


def advice_text(number: int) -> str:
    """``3 pieces of advice``."""
    return f"{counted(number, 'piece')} of advice"
