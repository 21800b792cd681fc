"""The findings of a live check, as a file in the run directory that is written as they come.

`traincheck run` and `traincheck check --follow` write it. The status and the terminal view read it,
so that no run is judged twice.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from traincheck.live.following import Listener
from traincheck.report.json_report import report_json
from traincheck.schema.files import dump_json, parse_json, put_bytes, read_regular
from traincheck.schema.layout import CHECKED, SCHEMA_VERSION

if TYPE_CHECKING:
    from traincheck.check.engine import Engine
    from traincheck.check.suppression.policy import Baseline
    from traincheck.schema.events import StepEvent
    from traincheck.schema.findings import Report

MOST_FINDINGS = 50  # in the file; all are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The state of a live check.

    Attributes:
        schema_version: of the file.
        step: the last step that was checked on all ranks; None before the first.
        pid: the process that checks.
        over: whether the check has ended.
        summary: numbers of events, steps and verdicts, as in the JSON report.
        findings: the first ones, as in the JSON report but without evidence.
        counts: severity -> number of all findings.
        tally: tier -> number of findings; empty in files of older versions.
    """

    schema_version: int = SCHEMA_VERSION
    step: int | None = None
    pid: int = 0
    over: bool = False
    summary: Mapping[str, int] = field(default_factory=dict)
    findings: Sequence[Mapping[str, Any]] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    tally: Mapping[str, int] = field(default_factory=dict)

    @property
    def serious(self) -> int:
        """Number of findings but observations and advice."""
        return sum(self.counts.values()) - self.counts.get("info", 0)

    def number(self, tier: str) -> int:
        """Number of findings of a tier, as every report counts them."""
        older = {"finding": self.serious, "advice": self.counts.get("info", 0)}
        return (self.tally or older).get(tier, 0)

    @property
    def shown(self) -> Sequence[Mapping[str, Any]]:
        """The findings and observations in the file."""
        return [one for one in self.findings if tier_of(one) != "advice"]


def tier_of(found: Mapping[str, Any]) -> str:
    """The tier of a finding in the file; older versions did not write it."""
    older = "advice" if found.get("severity") == "info" else "finding"
    return str(found.get("tier") or older)


def write_checked(directory: Path, checked: Checked) -> None:
    """Replace the file atomically.

    Raises:
        OSError: it could not be written.
    """
    record = {name: getattr(checked, name) for name in Checked.__slots__}
    put_bytes(directory / CHECKED, dump_json(record, option=orjson.OPT_APPEND_NEWLINE))


def read_checked(directory: Path) -> Checked | None:
    """The state of the live check of a run; None if there was none, or its file is not readable."""
    try:
        return msgspec.convert(parse_json(read_regular(directory / CHECKED)), Checked)
    except (OSError, ValueError):  # a file from elsewhere is no reason to fail
        return None


_EVERY_S = 0.5
_DETAILS = ("evidence", "excerpt", "also_broke")  # they are in the report; here they take room


class CheckNotes(Listener):
    """Keeps the file up to date. A folder that cannot be written to ends it: the check goes on.

    Args:
        engine: of the check, which takes in the events in the thread that calls this.
        directory: of the run.
        baseline: findings that are not reported.
        clock: monotonic seconds; replaced in tests.
    """

    def __init__(
        self,
        engine: Engine,
        directory: Path,
        *,
        baseline: Baseline | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._directory = directory
        self._baseline = baseline
        self._clock = clock
        self._steps: dict[int, int] = {}
        self._is_new = True
        self._written_s = -_EVERY_S
        self._is_off = False

    def step(self, event: StepEvent) -> None:
        """A step of one rank was checked."""
        if event.step is not None:
            self._steps[event.rank] = event.step
        self._is_new = True
        self.tick()

    def tick(self) -> None:
        """Write, if there is news and the last time was long enough ago."""
        if self._is_new and self._clock() >= self._written_s + _EVERY_S:
            self._write(self._engine.so_far())

    def finish(self, report: Report) -> None:
        """Write the conclusion.

        Args:
            report: of the whole run, the baseline applied.
        """
        self._write(report, over=True)

    def _write(self, report: Report, *, over: bool = False) -> None:
        self._is_new, self._written_s = False, self._clock()
        if self._is_off or not self._directory.is_dir():
            return
        if self._baseline is not None and not over:
            report = self._baseline.apply(report)
        try:
            write_checked(self._directory, self._state(report, over=over))
        except OSError:
            self._is_off = True

    def state(self) -> Checked:
        """The findings so far. Nothing is written."""
        return self._state(self._engine.so_far(), over=False)

    def _state(self, report: Report, *, over: bool) -> Checked:
        told = report_json(report)
        return Checked(
            step=min(self._steps.values(), default=None),
            pid=os.getpid(),
            over=over,
            summary=told["summary"],
            findings=[
                {name: value for name, value in finding.items() if name not in _DETAILS}
                for finding in told["findings"][:MOST_FINDINGS]
            ],
            counts=Counter(finding.severity for finding in report.findings),
            tally=told["tally"],
        )
