"""Beside a program that runs: check it in a thread of the process that launched it, or end it.

The program is never touched, except to stop it where that is asked for.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.check.run_overview import RunOverview
from traincheck.collect.launch.signals import ProgramStopper
from traincheck.errors import OutputError
from traincheck.live.checked import CheckNotes
from traincheck.live.following import Following, Listener, Sending
from traincheck.report.run_summary import RunSummary, write_run_summary
from traincheck.store.tail import SILENT_S, TailReader
from traincheck.store.thin import record_gap

from ._options import size_text
from ._os_errors import ignore_closed_stderr, line_start
from ._terminal import Lines, write_message

if TYPE_CHECKING:
    from traincheck.check.engine import Engine
    from traincheck.check.suppression.policy import Baseline
    from traincheck.config import Config
    from traincheck.page.build import Watcher
    from traincheck.receivers.notifier import Notifier
    from traincheck.schema.events import Event
    from traincheck.schema.findings import Finding, Report

_THREAD = "traincheck-live"
_LOW_PRIORITY = 10  # the program comes first where both want the same core
_FAR_BEHIND = 25_000_000  # bytes to be read; then both come first: what waits takes room
_PATIENCE_S = 2.0  # then the user is told what is waited for


def engine_for(
    command: Sequence[str], invariants: Sequence[str], config: Config, *, rules: bool = True
) -> Engine:
    """The checks of a program that is about to run, and the readers of its facts."""
    from traincheck.api import make_engine
    from traincheck.check.suppression.source_files import SourceFiles, program_in, trusted_folders
    from traincheck.facts.table import READERS

    program = program_in(command)
    return make_engine(
        invariants,
        rules=rules,
        config=config,
        sources=SourceFiles(os.getcwd, trusted_folders(script=program)),
        program=lambda: program,
        followers=READERS,
    )


def write_summary(summary: RunSummary) -> None:
    """Write the summary of a run to stderr, wherever the program left the cursor."""
    with ignore_closed_stderr():
        sys.stderr.write(line_start(sys.stderr))
        write_run_summary(summary, sys.stderr)


class LiveCheck:
    """Follows one run. Make it, hand `start` to the launcher, and `finish` when that returns.

    Args:
        engine: made for this run.
        directory: where the run is recorded.
        halts: stop the program at the first finding of severity error.
        baseline: findings that are not reported.
        stall_s: seconds without a record after which a rank counts as silent.
        limit: bytes that the trace may take; what was checked is dropped then. None for no limit.
        is_silent: write nothing while the program runs: a view has the terminal.
        notifier: sends findings to receivers; None for none.

    Attributes:
        watcher: takes in the events for a page, if it is set before the start.
    """

    def __init__(
        self,
        engine: Engine,
        directory: Path,
        *,
        halts: bool = False,
        baseline: Baseline | None = None,
        stall_s: float = SILENT_S,
        limit: int | None = None,
        is_silent: bool = False,
        notifier: Notifier | None = None,
    ) -> None:
        self._engine = engine
        self._stall_s = stall_s
        self._directory = directory
        self._halts = halts
        self._baseline = baseline
        self._limit = limit
        self._notifier = notifier
        self.watcher: Watcher | None = None
        self._ended = threading.Event()
        self._is_abandoned = False
        self._is_partial = False
        self._notes: list[str] = []
        self._reader: TailReader | None = None
        self._following: Following | None = None
        self._is_done = False
        self._lines = Lines(engine, is_silent=is_silent)
        self._thread = threading.Thread(target=self._follow, daemon=True, name=_THREAD)

    @property
    def watched(self) -> RunOverview:
        """The composition of the run."""
        assert self._following is not None
        return self._following.overview

    def start(self, process: subprocess.Popen[bytes]) -> None:
        """The program runs."""
        self._reader = TailReader(
            self._directory,
            silent_s=self._stall_s,
            limit=self._limit,
            stop=self._ended.is_set,
            sleep=self._wait,
        )
        notes = CheckNotes(self._engine, self._directory, baseline=self._baseline)
        self._following = Following(
            self._engine,
            self._reader,
            [self._lines, notes],
            baseline=self._baseline,
            watch=() if self.watcher is None else (self.watcher.take,),
        )
        if self._notifier is not None:
            self._following.listeners.append(Sending(self._notifier, self._following))
        if self._halts:
            stopper = ProgramStopper(process, self._directory)
            self._following.listeners.append(
                _Halting(stopper, self._ended, self._notes, self._lines)
            )
        self._thread.start()

    def finish(self) -> Report:
        """Check the rest of the trace after the program ended. An interrupt skips it."""
        self._ended.set()
        try:
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive() and sys.stderr.isatty():  # for somebody who can press it
                write_message("checking the rest of the trace; press Ctrl-C to skip it")
            self._thread.join()
        except KeyboardInterrupt:
            self._is_abandoned = self._is_partial = True
            self._thread.join()
            self._notes.append("the end of the trace was not checked: checking was interrupted")
        assert self._following is not None
        return self._following.finish(self._notes, is_partial=self._is_partial)

    def speak(self) -> None:
        """The terminal is free: write from now on."""
        self._lines.is_silent = False
        if self._notifier is not None:
            self._notifier.speak()

    def compact_trace(self) -> str:
        """Turn the trace into an ordinary one and return a sentence about what it lacks, or "".

        Raises:
            OutputError: it could not be rewritten.
        """
        assert self._reader is not None
        try:
            gap = self._reader.compact()
            if gap is None:
                return ""
            return record_gap(self._directory, gap, size_text(self._limit or 0))
        except OSError as error:
            raise OutputError(
                f"cannot rewrite the trace in {self._directory}: {error.strerror}",
                fix="free disk space, or run with --max-trace 0",
            ) from error

    def _follow(self) -> None:
        """Check, in a thread that gives way to the program as long as that keeps up with it."""
        assert self._reader is not None
        events = self._reader.events()
        while not self._is_done:
            if self._reader.behind >= _FAR_BEHIND:
                self._check_events(events, is_urgent=True)
            else:  # priority that was given away cannot be taken back
                patient = threading.Thread(
                    target=self._check_at_low_priority, args=(events,), daemon=True
                )
                patient.start()
                patient.join()

    def _check_at_low_priority(self, events: Iterator[Event]) -> None:
        with contextlib.suppress(OSError, AttributeError):  # where threads have their own priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
        self._check_events(events, is_urgent=False)

    def _check_events(self, events: Iterator[Event], *, is_urgent: bool) -> None:
        assert self._following is not None
        try:
            self._following.feed(self._while_priority_fits(events, is_urgent=is_urgent))
        except Exception as error:  # the program runs on whatever we got wrong
            self._is_done = self._is_partial = True
            self._notes.append(f"checking failed with {type(error).__name__}: {error}")

    def _while_priority_fits(self, events: Iterator[Event], *, is_urgent: bool) -> Iterator[Event]:
        """Events as long as the priority is the right one. At the end of a run that is the same."""
        assert self._reader is not None
        for event in events:
            if self._is_abandoned:
                break
            yield event
            if event.kind == "step":
                least = _FAR_BEHIND // 2 if is_urgent else _FAR_BEHIND
                if (self._reader.behind >= least) is not is_urgent:
                    return
        self._is_done = True

    def _wait(self, seconds: float) -> None:
        self._ended.wait(seconds)  # not a polling sleep: the end of the program wakes it
        assert self._following is not None
        self._following.tick()


class _Halting(Listener):
    """Stops the program at the first finding that is sure."""

    def __init__(
        self,
        stop: Callable[[], object],
        ended: threading.Event,
        notes: list[str],
        lines: Lines,
    ) -> None:
        self._stop, self._ended, self._notes, self._lines = stop, ended, notes, lines
        self._is_halted = False

    def finding(self, finding: Finding) -> None:
        """Stop the program; while it ends, each further finding asks again."""
        if finding.severity != "error" or finding.provisional:
            return
        if not (self._ended.is_set() or self._is_halted):
            self._is_halted = True
            self._notes.append(f"--halt stopped the program at {finding.code}")
            if not self._lines.is_silent:
                write_message("stopping the program")
        self._stop()


_POLL_S = 0.02
_LAST_RANKS_S = 1.0  # until the other ranks, if there are any, have come as far


class StopAt:
    """Hand `start` to the launcher, and call `end` when that returns.

    Args:
        directory: of the run.
        name: of the file.
        is_on: whether to end the program at all.

    Attributes:
        has_stopped: whether it was ended.
    """

    def __init__(self, directory: Path, name: str, *, is_on: bool) -> None:
        self._directory, self._name, self._is_on = directory, name, is_on
        self._ended = threading.Event()
        self.has_stopped = False

    def start(self, process: subprocess.Popen[bytes]) -> None:
        """The program runs."""
        if self._is_on:
            threading.Thread(target=self._wait, args=(process,), daemon=True).start()

    def end(self) -> None:
        """It has ended."""
        self._ended.set()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        from traincheck.collect.launch.run_manifest import find_processes
        from traincheck.collect.launch.signals import ProgramStopper

        while not (self._directory / self._name).exists():
            if self._ended.wait(_POLL_S):
                return
        is_alone = len(find_processes(self._directory)) <= 1
        if is_alone or not self._ended.wait(_LAST_RANKS_S):
            self.has_stopped = True
            ProgramStopper(process, self._directory)()
