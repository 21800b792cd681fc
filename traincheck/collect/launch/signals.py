"""Signals for a recorded program: delivered exactly once, and to stop what remains of it."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from traincheck.collect.launch.run_manifest import find_processes
from traincheck.errors import LaunchError
from traincheck.schema.files import read_regular
from traincheck.schema.layout import HALTED

# Signals that request the end of a program
_ENDING = frozenset({"SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"})
_NAMES = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT")
# Time to wait for the probe process; after it, only the launcher was signalled. Counted in polls,
# because a clock continues while the whole machine is suspended
_TURNS, _TURN_MS = 20, 50
_SAME_S = 2.0  # ``timeout`` signals its child and then the group of it


class SignalRelay:
    """While entered, signals for the program reach it instead of ending the launcher.

    A signal to the launcher alone is forwarded. If a terminal, ``timeout`` or a batch system
    signals the whole group, the program has already received it. A signal that is ignored here
    stays ignored: nohup and background jobs keep their meaning.
    """

    def __init__(self) -> None:
        self.interrupted: str | None = None  # the last signal that requested the end
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: list[int] = []
        self._previous: dict[int, Any] = {}
        self._witness: _Witness | None = None

    def __enter__(self) -> SignalRelay:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may set handlers
        known = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        numbers = [n for n in known if signal.getsignal(n) not in (signal.SIG_IGN, None)]
        self._witness = _Witness.call(numbers)
        for number in numbers:
            # A function, not SIG_IGN: the program would inherit that.
            self._previous[number] = signal.signal(number, self._forward)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._witness is not None:
            self._witness.dismiss()

    def attach(self, process: subprocess.Popen[bytes]) -> None:
        """The program runs now: forward signals that arrived during its start.

        It joins the group shortly before it is known here; on a busy machine, not so shortly.
        """
        self._process = process
        for number in self._pending:
            self._forward(number, None)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        self.interrupted = name if name in _ENDING else self.interrupted
        if self._process is None:
            self._pending.append(number)
        elif self._witness is None or not self._witness.was_sent(number):
            self._process.send_signal(number)


class _Witness:
    """A process in the launcher's group that only reports the signals that it receives.

    A handler cannot see whether a signal was sent to its process or to a group.
    """

    def __init__(self, pid: int, life: int, word: int) -> None:
        self._pid, self._life, self._word = pid, life, word
        self._told: dict[int, float] = {}

    @classmethod
    def call(cls, numbers: Iterable[int]) -> _Witness | None:
        """Start one, and wait until it listens; None if that is impossible."""
        if not hasattr(os, "fork") or not hasattr(select, "poll"):
            return None
        ends = [*os.pipe(), *os.pipe()]
        try:
            pid = os.fork()
        except OSError:
            for end in ends:
                os.close(end)
            return None
        if pid == 0:
            _testify(numbers, ends[0], ends[3])
        os.close(ends[0])
        os.close(ends[3])
        os.read(ends[2], 1)
        os.set_blocking(ends[2], False)
        return cls(pid, ends[1], ends[2])

    def was_sent(self, number: int) -> bool:
        """Whether the probe process has also received this signal just now."""
        poll = select.poll()
        poll.register(self._word, select.POLLIN)
        for _ in range(_TURNS):
            if self._is_told(number):
                break
            poll.poll(_TURN_MS)
            # A handler of another signal that ran meanwhile may have read it
            with contextlib.suppress(BlockingIOError):
                word = os.read(self._word, 64)
                if not word:  # it was killed
                    return False
                self._told.update(dict.fromkeys(word, monotonic()))
        return self._is_told(number)

    def _is_told(self, number: int) -> bool:
        return monotonic() - self._told.get(number, -math.inf) <= _SAME_S

    def dismiss(self) -> None:
        """End it. Closing its pipe is not enough if other processes have been forked since."""
        os.close(self._life)
        os.close(self._word)
        # If SIGCHLD is ignored, no wait is needed
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _testify(numbers: Iterable[int], life: int, word: int) -> None:
    """The main function of the probe process, until the launcher ends."""
    try:
        os.set_blocking(word, False)
        signal.set_wakeup_fd(word)  # C writes the number at once, before any Python runs
        for number in numbers:
            signal.signal(number, lambda *_: None)
        for held in {0, 1, 2, *map(int, os.listdir("/dev/fd"))} - {life, word}:
            with contextlib.suppress(OSError):
                os.close(held)
        os.write(word, b"\0")
        os.read(life, 1)  # until there is no writer left
    finally:
        os._exit(0)


GRACE_S = 10.0


# Signals only processes that have the settings of this run; makes no decisions.
class ProgramStopper:
    """Ends a program and all processes of its run that left events.

    Args:
        process: the program.
        directory: of the run.
        grace_s: seconds from SIGTERM to SIGKILL.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], directory: Path, grace_s: float = GRACE_S
    ) -> None:
        self._process = process
        self._directory = directory
        self._grace_s = grace_s
        self._is_called = False

    def __call__(self) -> None:
        """Begin; returns at once. A second call does nothing."""
        if self._is_called:
            return
        self._is_called = True
        with contextlib.suppress(OSError):  # ranks that wait in a collective are meaningless then
            (self._directory / HALTED).touch()
        self._signal(signal.SIGTERM)
        later = threading.Timer(self._grace_s, self._signal, [signal.SIGKILL])
        later.daemon = True
        later.start()

    def _signal(self, number: int) -> None:
        # A shell or a launcher may end without its children, so these are signalled directly.
        for known in find_processes(self._directory):
            pid = known["pid"]
            if pid == self._process.pid:
                continue
            with contextlib.suppress(OSError):  # it has ended by itself
                # The id may belong to another process by now: ids are reused
                if os.fsencode(str(self._directory)) in read_regular(f"/proc/{pid}/environ"):
                    os.kill(pid, number)
        self._process.send_signal(number)  # does nothing if it has been waited for


def refuse_other_systems() -> None:
    """Recording needs Linux: /proc, fork, priorities of threads.

    Raises:
        LaunchError: this is another operating system.
    """
    if sys.platform != "linux":
        raise LaunchError(
            f"recording works on Linux only; this system is {sys.platform}",
            fix="record on Linux, for example in a container or WSL 2; traincheck-check, "
            "traincheck-infer, traincheck trace and traincheck invariants read its traces here",
        )
