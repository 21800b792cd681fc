"""Send the findings of a check to receivers. Nothing that a receiver does reaches the check.

Each receiver has a process, and a thread here that feeds it. The check puts messages into a queue
and goes on. At the end the command waits for a receiver as long as its patience.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from traincheck.handlers import give_back
from traincheck.receivers.messages import (
    RunName,
    finding_message,
    report_message,
    withdrawn_message,
)
from traincheck.receivers.routes import Route
from traincheck.schema.files import dump_json
from traincheck.schema.findings import SEVERITIES, Finding, Report
from traincheck.schema.words import printable

_THREAD = "traincheck-receiver"
_PROGRESS_S = 15.0  # between two messages of progress
_GRACE_S = 1.0  # for a thread whose process was killed
# The process imports what this one can: neither the working directory nor a script comes first.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from traincheck.receivers.worker import main; main()"
)


class Notifier:
    """Sends findings to receivers. No method raises because of a receiver.

    Args:
        routes: the receivers and their settings.
        run: the name of the run.
        tell: writes a line for the user: one for each receiver that fails, and where results are.
        is_known: whether a finding was accepted before, and so is not sent.
        is_silent: hold the lines for the user back until `speak`: a view has the terminal.
        clock: monotonic seconds; replaced in tests.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        run: RunName,
        tell: Callable[[str], object],
        *,
        is_known: Callable[[Finding], bool] | None = None,
        is_silent: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._tell = _Lines(tell, is_silent=is_silent)
        self._is_known = is_known or (lambda finding: False)
        self._clock = clock
        self._deliveries = [_Delivery(route, self._tell) for route in routes]
        self._takes_progress = any(route.takes_progress for route in routes)
        self._sent: dict[tuple[str, int | None], Finding] = {}
        self._next_progress_s = clock() + _PROGRESS_S
        self._is_failed = False
        self._is_closed = False

    def finding(self, finding: Finding, report: Report) -> None:
        """Send a finding once. report: the one that it is in, for the place in the source."""
        key = (finding.check, finding.first_step)
        if not self._deliveries or key in self._sent or self._is_known(finding):
            return
        self._sent[key] = finding
        self._name(report)
        self._send(
            lambda: finding_message(finding, report, self._run, self._counts()), finding.severity
        )

    def withdrawn(self, finding: Finding) -> None:
        """Send that a finding no longer counts, if it was sent."""
        if self._sent.pop((finding.check, finding.first_step), None) is not None:
            self._send(
                lambda: withdrawn_message(finding, self._run, self._counts()), finding.severity
            )

    def progress(self, make: Callable[[], Report]) -> None:
        """Send the present numbers, if a receiver needs them and the interval is over."""
        if self._takes_progress and self._clock() >= self._next_progress_s:
            self._next_progress_s = self._clock() + _PROGRESS_S
            self._send(lambda: report_message(make(), self._run, is_final=False))

    def report(self, report: Report, *, has_trace: bool = True) -> None:
        """Send the findings that were not sent yet, then the report.

        has_trace: whether the trace of the run is kept.
        """
        self._name(report)
        if not has_trace:
            self._run = replace(self._run, trace="")
        for finding in report.findings:
            self.finding(finding, report)
        self._send(lambda: report_message(report, self._run))

    def speak(self) -> None:
        """The terminal is free: write what was held back, and write from now on."""
        self._tell.release()

    def close(self) -> None:
        """Wait for the receivers, each as long as its patience.

        Raises:
            KeyboardInterrupt: the waiting was interrupted. The receivers are given up.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self.speak()
        start = time.monotonic()
        for delivery in self._deliveries:
            delivery.end()
        try:
            for delivery in self._deliveries:
                delivery.join(start)
        finally:
            for delivery in self._deliveries:
                delivery.kill()

    def __enter__(self) -> Notifier:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _name(self, report: Report) -> None:
        """Take the program and the host of the run, once they are known."""
        if report.program or report.hostname:
            self._run = replace(self._run, program=report.program, host=report.hostname)

    def _counts(self) -> dict[str, int]:
        counts = dict.fromkeys(SEVERITIES, 0)
        for finding in self._sent.values():
            counts[finding.severity] += 1
        return counts

    def _send(self, make: Callable[[], Mapping[str, Any]], severity: str = "") -> None:
        if not self._deliveries:
            return
        try:
            message = make()
            line = dump_json(message)
        except Exception as error:  # a fault of ours must not end the check
            give_back(error)
            if not self._is_failed:
                self._is_failed = True
                self._tell(
                    f"receivers: a message could not be made: {type(error).__name__}: {error}"
                )
            return
        for delivery in self._deliveries:
            delivery.put(str(message["kind"]), line, severity)


class _Lines:
    """Lines for the user, which can be held back for a while. Several threads write them."""

    def __init__(self, tell: Callable[[str], object], *, is_silent: bool) -> None:
        self._tell = tell
        self._held: list[str] = []
        self._is_silent = is_silent
        self._lock = threading.Lock()

    def __call__(self, text: str) -> None:
        with self._lock:
            if self._is_silent:
                self._held.append(text)
                return
        self._tell(text)

    def release(self) -> None:
        with self._lock:
            self._is_silent, held = False, self._held
            self._held = []
        for text in held:
            self._tell(text)


class _Delivery:
    """The queue, the thread and the process of one receiver."""

    def __init__(self, route: Route, tell: Callable[[str], object]) -> None:
        self._route = route
        self._tell = tell
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_reported = False
        self._is_given_up = False
        self._lock = threading.Lock()
        self._lines.put(
            dump_json({"kind": "open", "entry": route.entry, "settings": dict(route.settings)})
        )
        self._thread = threading.Thread(
            target=self._work, daemon=True, name=f"{_THREAD}-{route.name}"
        )
        if route.error:
            self._report(route.error)
        else:
            self._thread.start()

    def put(self, kind: str, line: bytes, severity: str) -> None:
        """Take a message, unless its severity is below the level of the receiver."""
        is_below = severity and SEVERITIES.index(severity) < SEVERITIES.index(self._route.level)
        if not is_below and (kind != "progress" or self._route.takes_progress):
            self._lines.put(line)

    def end(self) -> None:
        """No further message follows."""
        self._lines.put(None)

    def join(self, start_s: float) -> None:
        """Wait until all is sent, at most until the patience after ``start_s`` is over."""
        if not self._thread.is_alive():
            return
        self._thread.join(max(0.0, start_s + self._route.patience_s - time.monotonic()))
        if self._thread.is_alive():
            self._report(f"not finished after {self._route.patience_s:g} s; given up")

    def kill(self) -> None:
        """End the process, whatever it does."""
        with self._lock:
            self._is_given_up = True
            process = self._process
        if process is not None and process.poll() is None:
            process.kill()
        if self._thread.is_alive():
            self._thread.join(_GRACE_S)

    def _work(self) -> None:
        try:
            self._deliver()
        except Exception as error:  # the process could not start, or ended
            self._report(_cause(error, self._process))
        finally:
            process = self._process
            if process is not None:
                process.kill()
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        with contextlib.suppress(OSError):  # what was not sent is lost
                            stream.close()
                process.wait()

    def _deliver(self) -> None:
        command = [sys.executable, "-c", _START, json.dumps(sys.path)]
        quiet = None if os.environ.get("TRAINCHECK_DEBUG") else subprocess.DEVNULL
        with self._lock:
            if self._is_given_up:
                return
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=quiet,
                start_new_session=True,  # Ctrl-C is for the command, which closes the receiver
            )
        if not self._exchange(self._lines.get() or b""):
            return  # it could not be made
        for line in iter(self._lines.get, None):
            self._exchange(line)
        self._exchange(dump_json({"kind": "close"}))
        self._process.wait()  # libraries may finish their work at the exit

    def _exchange(self, line: bytes) -> bool:
        """Send one message and wait for the reply. Returns whether the receiver took it.

        Raises:
            OSError, ValueError: the process has ended.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + b"\n")
        process.stdin.flush()
        reply = json.loads(process.stdout.readline())
        if reply.get("error"):
            self._report(reply["error"])
        if reply.get("note"):
            self._tell(f"{self._route.name}: {printable(reply['note'])}")
        return not reply.get("error")

    def _report(self, reason: str) -> None:
        """Tell the user once that this receiver fails."""
        with self._lock:
            if self._is_reported or self._is_given_up:
                return
            self._is_reported = True
        self._tell(f"receiver {self._route.name} failed: {printable(reason)}")


def _cause(error: Exception, process: subprocess.Popen[bytes] | None) -> str:
    if process is None:
        return f"its process could not be started: {error}"
    try:
        status = process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        return f"its process does not answer: {type(error).__name__}"
    return f"its process ended with status {status}"
