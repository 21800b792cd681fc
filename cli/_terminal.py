"""Lines for people on stderr while a program runs: findings as they come, and how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from traincheck.live.following import Listener
from traincheck.report.lines import COLOURS, page, paragraph
from traincheck.report.text_report import one_line
from traincheck.schema.findings import Verdict
from traincheck.schema.places import short, where
from traincheck.schema.words import counted, printable

from ._os_errors import ignore_closed_stderr, line_start

if TYPE_CHECKING:
    from traincheck.check.engine import Engine
    from traincheck.schema.findings import Finding

_FIRST_BEAT_S = 10.0
_LONGEST_BEAT_S = 1800.0
_UNBROKEN = 1_000_000


def write_message(text: str | Text, *, is_written: bool = True) -> None:
    """Write a paragraph that begins on a new line. On a terminal, wrap it between words.

    is_written: whether a program writes to stderr at this time.
    """
    said = text if isinstance(text, Text) else Text(text)
    with ignore_closed_stderr():
        console = page(sys.stderr)
        if not sys.stderr.isatty():
            console.width = _UNBROKEN  # one line in a log, to be searched for
        with console.capture() as written:
            paragraph(console, Text().append("traincheck: ", style="dim").append_text(said))
        # One write, so that no output of the program gets in between.
        sys.stderr.write(line_start(sys.stderr, is_written=is_written) + written.get())
        sys.stderr.flush()


def write_finding(finding: Finding, *, is_written: bool = True) -> None:
    """Write a line for a finding as it comes. Advice can wait for the end."""
    if finding.severity == "info":
        return
    more = f": {finding.observed}" if finding.provisional else ""  # it asks for a look at once
    at = short(where(finding.evidence))
    line = Text(printable(f"{one_line(finding)}{f' ({at})' if at else ''}{more}"))
    line.highlight_words([f"{finding.code} {finding.severity}"], COLOURS[finding.severity])
    write_message(line, is_written=is_written)


def write_withdrawn(finding: Finding, *, is_written: bool = True) -> None:
    """Write a line for a finding that was written and does not stand."""
    write_message(
        f"withdrawn: {finding.code} {finding.title}: the run continued", is_written=is_written
    )


class Heartbeat:
    """Reports progress on a terminal, at growing intervals.

    Args:
        engine: what checks the run, in the thread that calls `tick`.
        clock: monotonic seconds; replaced in tests.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._interval_s = _FIRST_BEAT_S
        self._last_s = clock()
        self._last_steps = 0
        self._is_on = sys.stderr.isatty()

    def tick(self) -> None:
        """Report if the interval is over."""
        if not self._is_on or self._clock() < self._last_s + self._interval_s:
            return
        now_s = self._clock()
        report = self._engine.so_far()
        rate = (report.steps - self._last_steps) / (now_s - self._last_s)
        self._last_s, self._last_steps = now_s, report.steps
        self._interval_s = min(2 * self._interval_s, _LONGEST_BEAT_S)
        if not report.steps:
            write_message("recording; no training step has finished yet")
            return
        triggered = report.count(Verdict.HELD) + report.count(Verdict.VIOLATED)
        found = [finding for finding in report.findings if finding.severity != "info"]
        parts = (
            f"checked up to step {report.steps - 1:,}",
            f"{rate:.3g} steps/s",
            f"{triggered} of {counted(len(report.verdicts), 'check')} triggered",
            counted(len(found), "finding") if found else "no findings",
        )
        write_message(", ".join(parts))


class Lines(Listener):
    """Writes findings as they come, and progress.

    Args:
        engine: what checks the run.
        is_written: whether a program writes to stderr at this time.

    Attributes:
        is_silent: write nothing now: a view has the terminal.
    """

    def __init__(self, engine: Engine, *, is_written: bool = True, is_silent: bool = False) -> None:
        self.is_silent = is_silent
        self._is_written = is_written
        self._heartbeat = Heartbeat(engine)

    def finding(self, finding: Finding) -> None:
        """Write a line for it, unless it can wait for the end."""
        if not self.is_silent:
            write_finding(finding, is_written=self._is_written)

    def withdrawn(self, finding: Finding) -> None:
        """Write that it does not stand."""
        if not self.is_silent:
            write_withdrawn(finding, is_written=self._is_written)

    def tick(self) -> None:
        """Report progress if it is time to."""
        if not self.is_silent:
            self._heartbeat.tick()
