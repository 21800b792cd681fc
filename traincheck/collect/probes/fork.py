"""Run an experiment in a copy of this process, which is thrown away.

The parent reads what the child reports through a pipe, and waits. The child ends by `_exit`
whatever happens: it never goes on as the program. Its time is limited in seconds of CPU, so that a
busy machine changes no result.

Only the thread that forks is in the child. A lock that another thread held stays locked there. A
child that waits for one is ended as soon as the system shows it, and may be copied again.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from os import _exit, close, getpid, kill, pipe, read, strerror, uname, wait4
from os import write as _write
from pathlib import Path
from select import POLLIN, poll
from signal import getsignal
from sysconfig import get_path
from time import clock_gettime, monotonic
from typing import Any, NamedTuple, NoReturn

import orjson
import torch

from traincheck.collect.probes.isolation import UnfitError, isolate
from traincheck.collect.trace_writer.emitter import HIDDEN_FILE
from traincheck.handlers import give_back
from traincheck.schema.files import read_regular

_CHUNK = 1 << 16
_MOST_REPORTED = 1 << 22  # bytes
_TICK_S = 0.05  # between two checks of a silent child
_WAITS_S = 3.0  # asleep: it waits for a worker, or for a lock with a limit of time
_IDLE = 0.1  # share of a tick: one that sleeps uses less CPU
_PATIENCE = 10  # seconds of the clock for each second of CPU that a child may use
_REASON = 200  # characters
_END = b"end"
_OUT_OF_MEMORY = ("not enough memory", "can't allocate memory")  # in errors of torch
_FUTEX = {"x86_64": b"202", "aarch64": b"98"}.get(uname().machine, b"")  # number of the call
_OURS = f"{Path(__file__).parents[2]}{os.sep}"
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_MODELS = (f"{_TORCH}nn{os.sep}", f"{_TORCH}autograd{os.sep}")
_STANDARD = f"{get_path('stdlib')}{os.sep}"
_python = ctypes.PyDLL(None, use_errno=True)  # calls keep the GIL
_NOTHING = object()
for _name in ("PyOS_BeforeFork", "PyOS_AfterFork_Child", "PyOS_AfterFork_Parent"):
    getattr(_python, _name).restype = None


def _once(function: Callable[[], Any]) -> Iterator[Any]:
    """Call it when the next item is asked for; an iterator in C."""
    return islice(iter(function, _NOTHING), 1)


class _Copying(threading.local):
    """How the child of this thread begins; None while it makes no copy."""

    begin: Callable[[], None] | None = None


_copying = _Copying()


def _begin() -> None:
    if _copying.begin is not None:
        _copying.begin()


# Such handlers run in order: those of the program run in a child that is separated already.
os.register_at_fork(after_in_child=_begin)


@contextmanager
def _no_threads() -> Iterator[None]:
    """Let no handler start a thread in the child.

    Telemetry starts again there: its threads open connections, which ends a copy, and hide that it
    waits. The handler gets the error that Python raises where the system allows no more threads.
    """
    parent, start = getpid(), threading.Thread.start
    hook = sys.unraisablehook

    def start_in_parent(self: threading.Thread) -> None:
        if getpid() == parent:
            return start(self)
        sys.unraisablehook = lambda raised: None  # of the child: it prints what handlers raise
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start_in_parent  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        if getpid() != parent:
            sys.unraisablehook = hook


@dataclass(slots=True)
class Outcome:
    """The end of a child.

    Attributes:
        told: what it reported, its last word for each key.
        reason: why it did not end as it should, as a clause; empty if it did.
        fault: the exception that code of traincheck raised in it; empty if none did.
        is_slow: whether it was ended because its time was over.
        is_stuck: whether it was ended because it waited for a lock or a thread of the program.
        cpu_s, wall_s: seconds that it took.
        asleep_s: of these, seconds in which it waited.
    """

    told: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    fault: str = ""
    is_slow: bool = False
    is_stuck: bool = False
    cpu_s: float = 0.0
    wall_s: float = 0.0
    asleep_s: float = 0.0


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
        if isinstance(error, MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY):
            self.fail("the copy has no memory left")
        text = " ".join(str(error).split())
        if not is_ours(error):
            name = type(error).__name__
            self.fail(f"{name} was raised: {text}" if text else name)
        try:
            self.tell(fault=described(error))
        finally:
            _exit(1)

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
    if not _is_alone() and not hasattr(_python, "_Fork"):
        return "the program has threads, and its C library is older than glibc 2.34"
    return ""


def _is_alone() -> bool:
    """Whether no other thread of Python runs."""
    return len(sys._current_frames()) == 1


def _fork() -> int:
    """`os.fork` for a program with threads.

    All steps are made within one call in C. Bytecode between the fork and the repair of the
    interpreter would wait for the GIL, which a thread that is not in the child may have asked for.
    Items that are false are passed over, so that the repair follows in the child alone.

    `os.fork` warns if there are threads, and lets libraries prepare. Some wait for their threads
    then, for ever if another thread of the program uses them, such as OpenBLAS.
    """
    steps = chain(
        _once(_python.PyOS_BeforeFork),
        _once(_python.fork if _is_alone() else _python._Fork),
        _once(_python.PyOS_AfterFork_Child),
    )
    pid, _ = next(zip(filter(None, steps), iter(_python.PyOS_AfterFork_Parent, _NOTHING)), (0, 0))
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, strerror(number))
    return int(pid)


def forked(
    body: Callable[[Child], None], limit_s: float, kept: Collection[int] = ()
) -> Outcome | Child:
    """Copy this process.

    Args:
        body: runs in the child. If it returns, `forked` returns in the child, which goes on as the
            program from here: until someone calls `Child.end`.
        limit_s: seconds of CPU that the child may use.
        kept: descriptors that the child may use.

    Returns:
        What became of the child; in the child itself, its end of the pipe.
    """
    python_state = random.getstate()
    begun = monotonic()
    try:
        source, target = pipe()
    except OSError as error:
        give_back(error)
        return Outcome(reason=f"the process cannot be copied: {error.strerror}")
    child = Child(target)
    limits = limit_s, limit_s * _PATIENCE

    def begin() -> None:
        try:
            isolate({target, *kept}, python_state, child.fail, *limits)
        except BaseException as error:
            child.fault(error)

    _copying.begin = begin
    try:
        with _no_threads():
            pid = _fork()
    except BaseException as error:
        close(source)
        close(target)
        give_back(error)
        if not isinstance(error, Exception):
            raise
        # There is no memory, or an audit hook of the program forbids it
        return Outcome(reason=f"the process cannot be copied: {error}")
    finally:
        _copying.begin = None
    if pid == 0:
        try:
            body(child)
        except BaseException as error:
            child.fault(error)
        return child
    status = 0
    outcome = Outcome()
    try:
        close(target)
        _told(_follow(source, pid, limits[1], outcome), outcome)
    finally:  # also after an exception of a signal handler of the program
        close(source)
        status, outcome.cpu_s = _reap(pid)
    outcome.wall_s = monotonic() - begun
    if status & 0x7F == signal.SIGPROF:  # that ended it
        outcome.reason, outcome.is_slow = f"it took more than {limit_s:g} s of CPU", True
    return outcome


def _follow(source: int, pid: int, patience_s: float, outcome: Outcome) -> bytes:
    """The report of the child until it ends, or until it waits, which the outcome says then."""
    parts: list[bytes] = []
    size = ticks = asleep = 0
    ready = poll()
    ready.register(source, POLLIN)
    before = _Sight("R", 0.0, False)
    while size < _MOST_REPORTED:
        if ready.poll(_TICK_S * 1000):
            part = read(source, _CHUNK)
            if not part:
                break
            parts.append(part)
            size += len(part)
            continue
        ticks += 1
        now = _seen(pid)
        if now.state == "Z":  # another child of the program has inherited the pipe
            break
        is_idle = now.cpu_s - before.cpu_s < _IDLE * _TICK_S
        if is_idle and now.state == "S":
            asleep += 1
            outcome.asleep_s += _TICK_S
            outcome.is_stuck = now.is_locked and before.is_locked
        elif not is_idle:  # one that is ready to run gets no CPU from a busy machine
            asleep = 0
        before = now
        if outcome.is_stuck:
            outcome.reason = "the copy waits for a lock or a thread of the program"
        elif asleep * _TICK_S >= _WAITS_S:
            outcome.reason, outcome.is_slow = f"the copy waited for {_WAITS_S:g} s", True
        elif ticks * _TICK_S >= patience_s:
            outcome.reason, outcome.is_slow = f"it took more than {patience_s:g} s", True
        if outcome.reason:
            break
    return b"".join(parts)


class _Sight(NamedTuple):
    """A process.

    Attributes:
        state: as in ``/proc``: "R" ready to run, "S" asleep, "Z" ended.
        cpu_s: seconds of CPU that it has used.
        is_locked: its only thread waits in a lock, without a limit of time: nobody opens it.
    """

    state: str
    cpu_s: float
    is_locked: bool


def _seen(pid: int) -> _Sight:
    try:
        call, *given = read_regular(f"/proc/{pid}/syscall").split()
    except OSError as error:  # the system does not show it
        give_back(error)
        call, given = b"", []
    try:
        state, *fields = read_regular(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        cpu_s = clock_gettime((~pid << 3) | 2)  # of the clock that `clock_getcpuclockid` gives
    except OSError as error:  # it has ended, and the program lets the system reap it
        give_back(error)
        return _Sight("Z", 0.0, False)
    is_alone, is_endless = fields[16] == b"1", given[3:4] == [b"0x0"]
    return _Sight(state.decode(), cpu_s, bool(call) and call == _FUTEX and is_alone and is_endless)


def _reap(pid: int) -> tuple[int, float]:
    """End the child if it runs, and take it out of the table of processes.

    Returns:
        Its status as `wait4` gives it; seconds of CPU.
    """
    try:
        kill(pid, signal.SIGKILL)
        _, status, usage = wait4(pid, 0)
    except (ProcessLookupError, ChildProcessError) as error:
        give_back(error)  # the program lets the system do that
        return 0, 0.0
    return status, usage.ru_utime + usage.ru_stime


def _told(text: bytes, outcome: Outcome) -> None:
    """Add what a child has reported."""
    *lines, _ = text.split(b"\n")
    if lines[-1:] == [_END]:
        outcome.reason = ""
    elif not outcome.reason:
        outcome.reason = "the copy of the process was ended"
    for line in lines:
        if line != _END:
            outcome.told.update(orjson.loads(line))
    outcome.fault = outcome.told.pop("fault", "")
    outcome.reason = outcome.told.pop("reason", "") or outcome.fault or outcome.reason


def is_ours(error: BaseException) -> bool:
    """Whether code of traincheck has raised an exception, or what it called to do its own work.

    The innermost frame decides that belongs to traincheck or to the program. Models and backward
    passes are the program's, also where an experiment runs them. `hidden` functions pass on what
    the program calls.
    """
    names, entry = [], error.__traceback__
    while entry is not None:
        names.append(entry.tb_frame.f_code.co_filename)
        entry = entry.tb_next
    for name in reversed(names):
        is_library = name.startswith(_TORCH) and not name.startswith(_MODELS)
        is_standard = name.startswith(_STANDARD) and "-packages" not in name
        if name == HIDDEN_FILE or name.startswith("<frozen") or is_library or is_standard:
            continue
        return name.startswith(_OURS)
    return False


def described(error: BaseException) -> str:
    """``KeyError: 'loss' at bench.py:31``."""
    text, entry = " ".join(str(error).split())[:_REASON], error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    code = entry and entry.tb_frame.f_code
    at = f" at {Path(code.co_filename).name}:{entry.tb_lineno}" if code and entry else ""
    return f"{type(error).__name__}: {text}{at}" if text else f"{type(error).__name__}{at}"
