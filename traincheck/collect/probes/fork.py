"""Run an experiment in a copy of this process, which is thrown away.

The parent waits, for a limited time, and reads what the child reports through a pipe. The child
ends by `_exit` whatever happens: it never goes on as the program.
"""

from __future__ import annotations

import ctypes
import random
import signal
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from os import _exit, close, kill, memfd_create, pipe, read, wait4
from os import write as _write
from select import POLLIN, poll
from signal import getsignal
from time import monotonic
from typing import Any, NoReturn

import orjson

from traincheck.collect.probes.isolation import UnfitError, isolate, positions, restore
from traincheck.handlers import give_back

_CHUNK = 1 << 16
_MOST_REPORTED = 1 << 22  # bytes
_REASON = 200  # characters
_END = b"end"
_python = ctypes.PyDLL(None)


@dataclass(slots=True)
class Outcome:
    """The end of a child.

    Attributes:
        told: what it reported, its last word for each key.
        reason: why it did not end as it should, as a clause; empty if it did.
        is_slow: whether it was ended because its time was over.
        cpu_s, wall_s: seconds that it took.
    """

    told: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    is_slow: bool = False
    cpu_s: float = 0.0
    wall_s: float = 0.0


class Child:
    """The end of a pipe, in a child. `end` and `fail` never return."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def tell(self, **facts: Any) -> None:
        """Report facts to the parent."""
        self._put(orjson.dumps(facts, option=orjson.OPT_SERIALIZE_NUMPY))

    def end(self) -> NoReturn:
        """The experiment is complete."""
        try:
            self._put(_END)
        finally:
            _exit(0)

    def fail(self, reason: str) -> NoReturn:
        """It cannot be made. reason: why, as a clause."""
        try:
            self.tell(reason=reason[:_REASON])
        finally:
            _exit(1)

    def fault(self, error: BaseException) -> NoReturn:
        """The program or the experiment raised an exception: report it, and end."""
        if isinstance(error, UnfitError):
            self.fail(str(error))
        text = " ".join(str(error).split())
        self.fail(f"{type(error).__name__} was raised: {text}" if text else type(error).__name__)

    def _put(self, line: bytes) -> None:
        left = line + b"\n"
        while left:
            left = left[_write(self._fd, left) :]


def obstacle() -> str:
    """Why this process cannot be copied exactly, as a clause; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "probes need Linux"
    handler = getsignal(signal.SIGCHLD)
    is_of_torch = str(getattr(handler, "__module__", "")).startswith("torch.")
    if callable(handler) and not is_of_torch:
        return "the program has a handler for the end of its child processes"
    return ""


def forked(
    body: Callable[[Child], None], limit_s: float, kept: Collection[int] = ()
) -> Outcome | Child:
    """Copy this process.

    Args:
        body: runs in the child. If it returns, `forked` returns in the child, which goes on as the
            program from here: until someone calls `Child.end`.
        limit_s: seconds that the child may take.
        kept: descriptors that the child may use.

    Returns:
        What became of the child; in the child itself, its end of the pipe.

    Raises:
        OSError: there is no memory for a copy, or no descriptor for a pipe.
    """
    python_state = random.getstate()
    before = positions()
    source, target = pipe()
    begun = monotonic()
    try:
        pid = _fork()
    except BaseException:
        close(source)
        close(target)
        raise
    if pid == 0:
        child = Child(target)
        try:
            isolate({target, *kept}, python_state, child.fail, limit_s)
            body(child)
        except BaseException as error:
            child.fault(error)
        return child
    try:
        close(target)
        outcome = _told(_read(source, begun + limit_s))
    finally:  # also after an exception of a signal handler of the program
        close(source)
        cpu_s = _reap(pid)
        restore(before)
    outcome.cpu_s, outcome.wall_s = cpu_s, monotonic() - begun
    if outcome.reason and outcome.wall_s >= limit_s:
        outcome.reason, outcome.is_slow = f"it took more than {limit_s:g} s", True
    return outcome


def _fork() -> int:
    """`os.fork` without its warning that other threads of the program are not copied."""
    _python.PyOS_BeforeFork()
    pid = int(_python.fork())
    if pid == 0:
        _python.PyOS_AfterFork_Child()
    else:
        _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "the process cannot be copied")
    return pid


def _read(source: int, until: float) -> bytes:
    """The report of the child until it ends, or its time is over."""
    parts, size = [], 0
    ready = poll()
    ready.register(source, POLLIN)
    while size < _MOST_REPORTED:
        left = until - monotonic()
        if left <= 0 or not ready.poll(left * 1000):
            break
        part = read(source, _CHUNK)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _reap(pid: int) -> float:
    """End the child if it runs, and take it out of the table of processes. Returns CPU seconds."""
    try:
        kill(pid, signal.SIGKILL)
        _, _, usage = wait4(pid, 0)
    except (ProcessLookupError, ChildProcessError) as error:
        give_back(error)  # the program lets the system do that
        return 0.0
    return usage.ru_utime + usage.ru_stime


def _told(text: bytes) -> Outcome:
    outcome = Outcome()
    *lines, _ = text.split(b"\n")
    for line in lines:
        if line == _END:
            return outcome
        outcome.told.update(orjson.loads(line))
    reason = outcome.told.pop("reason", None)
    outcome.reason = str(reason) if reason else "the copy of the process was ended"
    return outcome


def memory_file() -> int:
    """A descriptor of an empty file in memory, which copies of the process share."""
    return memfd_create("traincheck")
