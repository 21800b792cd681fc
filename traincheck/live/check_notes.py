"""Writes the findings of a live check, at most twice a second."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.live.checked import MOST_FINDINGS, Checked, write_checked
from traincheck.report.json_report import report_json

if TYPE_CHECKING:
    from traincheck.check.engine import Engine
    from traincheck.check.suppression.baseline import Baseline
    from traincheck.schema.events import StepEvent
    from traincheck.schema.findings import Report

_EVERY_S = 0.5
_DETAILS = ("evidence", "excerpt", "also_broke")  # they are in the report; here they take room


class CheckNotes:
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

    def end_step(self, event: StepEvent) -> None:
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
