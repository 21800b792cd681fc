"""Signals meant for a recorded program reach it once, whoever they were sent to."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterable
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

# Those that ask a program to end
_ENDING = frozenset({"SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"})
_NAMES = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT")
# For the word of the witness: then the launcher alone was meant. In turns of our own, for where the
# whole machine stands still a clock goes on
_TURNS, _TURN_MS = 20, 50
_SAME_S = 2.0  # ``timeout`` signals its child and then the group of it


class SignalRelay:
    """While entered, signals meant for the program reach it instead of ending the launcher.

    What the launcher alone is sent is handed on. What its whole group is sent, by a terminal,
    ``timeout`` or a batch system, the program has been sent as well. A signal that is ignored here
    stays ignored: nohup and background jobs keep their meaning.
    """

    def __init__(self) -> None:
        self.interrupted: str | None = None  # the last signal that asked the program to end
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._witness is not None:
            self._witness.dismiss()

    def attach(self, process: subprocess.Popen[bytes]) -> None:
        """The program runs now: hand on what came while it was being started.

        It is in the group a moment before it is known here; on a busy machine, quite a moment.
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
    """A process in the launcher's group that does nothing but tell which signals it is sent.

    No handler is told whether a signal was sent to its process or to a group.
    """

    def __init__(self, pid: int, life: int, word: int) -> None:
        self._pid, self._life, self._word = pid, life, word
        self._told: dict[int, float] = {}

    @classmethod
    def call(cls, numbers: Iterable[int]) -> _Witness | None:
        """Start one, and wait until it listens; None where there can be none."""
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
        """Whether the witness was sent this signal just now, too."""
        poll = select.poll()
        poll.register(self._word, select.POLLIN)
        for _ in range(_TURNS):
            if self._is_told(number):
                break
            poll.poll(_TURN_MS)
            # A handler that ran meanwhile, of another signal, may have read it
            with contextlib.suppress(BlockingIOError):
                word = os.read(self._word, 64)
                if not word:  # it was killed
                    return False
                self._told.update(dict.fromkeys(word, monotonic()))
        return self._is_told(number)

    def _is_told(self, number: int) -> bool:
        return monotonic() - self._told.get(number, -math.inf) <= _SAME_S

    def dismiss(self) -> None:
        """End it. Closing its pipe is not enough where others have been forked since."""
        os.close(self._life)
        os.close(self._word)
        # Where SIGCHLD is ignored nobody need wait for it
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _testify(numbers: Iterable[int], life: int, word: int) -> None:
    """What the witness does, until the launcher ends."""
    try:
        os.set_blocking(word, False)
        signal.set_wakeup_fd(word)  # C writes the number at once, before any Python runs
        for number in numbers:
            signal.signal(number, lambda *_: None)
        for held in {0, 1, 2, *map(int, os.listdir("/dev/fd"))} - {life, word}:
            with contextlib.suppress(OSError):
                os.close(held)
        os.write(word, b"\0")
        os.read(life, 1)  # until there is nobody who could write
    finally:
        os._exit(0)
