"""Separation of a child from its parent, before anything else: nothing it does reaches the program.

A child shares with its parent the positions of open files, pipes, sockets, and memory that is
mapped as shared: batches of loader workers, locks between processes. All of these become its own,
or lead nowhere. What would reach further ends the child: opening a file to write, starting a
process, a connection.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import os
import random
import resource
import signal
import stat
import sys
from collections.abc import Callable, Collection
from os import close, dup2, fsdecode, fstat, listdir, lseek, sysconf
from os import open as _open
from os import write as _write
from signal import getsignal, pthread_sigmask, setitimer, valid_signals
from signal import signal as _signal
from typing import Any

import torch

from traincheck.handlers import give_back
from traincheck.schema.files import read_regular

_FDS = "/proc/self/fd"
_MAPS = "/proc/self/maps"
_MOST_SHARED = 1 << 31  # bytes of shared memory that are copied
_LEAST_MEMORY = 1 << 29  # bytes that a child may take beyond what its parent has
_PROT_READ_WRITE, _PRIVATE_FIXED_ANONYMOUS = 3, 0x02 | 0x10 | 0x20
_WRITING = frozenset("wax+")
_SET_THREADS = [  # as OpenBLAS is built by itself, for numpy and for scipy
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("", "scipy_")
    for suffix in ("", "64_", "_64")
]
_ENDS = (
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link",
    "os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.system",
    "os.truncate", "os.utime", "shutil.", "signal.pthread_kill", "smtplib.", "socket.bind",
    "socket.connect", "socket.send", "sqlite3.connect", "subprocess.Popen", "urllib.Request",
)  # fmt: skip


class UnfitError(Exception):
    """A copy, or the experiment in it, shows nothing; the message is a clause that says why."""


def isolate(
    kept: Collection[int],
    python_state: Any,
    end: Callable[[str], None],
    cpu_s: float,
    wall_s: float,
) -> None:
    """Separate this child from its parent.

    Args:
        kept: descriptors that stay what they are.
        python_state: state of the generator of `random`, which Python seeds again in each child.
        end: ends the process, with a reason as a clause.
        cpu_s: seconds of CPU until the system ends it.
        wall_s: seconds until the system ends it, if it waits and its parent has ended.

    Raises:
        UnfitError: it shares too much.
    """
    random.setstate(python_state)
    timers = {signal.SIGPROF, signal.SIGALRM}
    for number in valid_signals():
        if callable(getsignal(number)) or number in timers:
            _signal(number, signal.SIG_DFL)
    pthread_sigmask(signal.SIG_UNBLOCK, timers)
    setitimer(signal.ITIMER_PROF, cpu_s)
    setitimer(signal.ITIMER_REAL, wall_s)
    atexit._clear()
    atexit.register(end, "the program ends before a backward pass")
    _detach_descriptors(kept)
    _detach_memory()
    _limit_memory()
    sys.dont_write_bytecode = True
    _leave_threads()
    sys.addaudithook(lambda event, args: _audit(event, args, end))


def _detach_descriptors(kept: Collection[int]) -> None:
    """Open files that are only read again, for positions of their own; let all else lead nowhere.

    The program may go on in other threads meanwhile, so its own positions are left alone.
    """
    nowhere = _open(os.devnull, os.O_RDWR)
    for fd in map(int, listdir(_FDS)):
        if fd in kept or fd == nowhere:
            continue
        try:
            mode, flags = fstat(fd).st_mode, fcntl.fcntl(fd, fcntl.F_GETFL)
        except OSError as error:
            give_back(error)  # the descriptor of the folder itself, which is closed now
            continue
        is_read = flags & (os.O_ACCMODE | os.O_PATH) == os.O_RDONLY
        if is_read and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            _open_again(fd, flags)
        else:
            dup2(nowhere, fd, inheritable=False)
    for fd in (1, 2):
        dup2(nowhere, fd)


def _open_again(fd: int, flags: int) -> None:
    try:
        again = _open(f"{_FDS}/{fd}", flags)
        lseek(again, lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    except OSError as error:
        give_back(error)
        raise UnfitError("a file that the program reads cannot be opened again") from None
    dup2(again, fd, inheritable=False)
    close(again)


def _detach_memory() -> None:
    """Replace memory that is shared with other processes by copies at the same addresses."""
    found = []
    for line in read_regular(_MAPS).splitlines():
        span, flags, *_ = line.split(None, 2)
        if flags.startswith(b"rw") and flags.endswith(b"s"):  # shared, and can be written to
            first, _, end = span.partition(b"-")
            found.append((int(first, 16), int(end, 16) - int(first, 16)))
    if sum(size for _, size in found) > _MOST_SHARED:
        raise UnfitError("the process shares more than 2 GB of memory with others")
    mmap = ctypes.CDLL(None, use_errno=True).mmap
    mmap.restype = ctypes.c_void_p
    mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    for start, size in found:
        content = ctypes.string_at(start, size)
        at = mmap(start, size, _PROT_READ_WRITE, _PRIVATE_FIXED_ANONYMOUS, -1, 0)
        if at != start:
            raise UnfitError("shared memory cannot be copied")
        ctypes.memmove(start, content, size)


def _leave_threads() -> None:
    """Compute without the threads of OpenMP and of OpenBLAS, which are not in a child."""
    torch.set_num_threads(1)
    paths = {line.split(None, 5)[-1] for line in read_regular(_MAPS).splitlines()}
    for path in paths:
        if b"openblas" in path:
            try:
                library = ctypes.CDLL(fsdecode(path), mode=os.RTLD_NOLOAD)
            except OSError as error:  # it was replaced on disk
                give_back(error)
                continue
            for name in _SET_THREADS:
                getattr(library, name, _nothing)(1)


def _nothing(count: int) -> None:
    """In the place of a function that a library lacks."""


def _limit_memory() -> None:
    """If memory runs out, it is this process that ends."""
    try:
        fd = _open("/proc/self/oom_score_adj", os.O_WRONLY)
        _write(fd, b"1000")
        close(fd)
        page = sysconf("SC_PAGE_SIZE")
        used = int(read_regular("/proc/self/statm").split()[0]) * page
        most = used + max(_LEAST_MEMORY, sysconf("SC_AVPHYS_PAGES") * page // 2)
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (OSError, ValueError) as error:
        give_back(error)  # a limit of the user is in force


def _audit(event: str, args: tuple[Any, ...], end: Callable[[str], None]) -> None:
    if event == "open":
        mode, flags = args[1], args[2]
        writes = _WRITING.intersection(mode) if isinstance(mode, str) else flags & 3
        if writes and args[0] != os.devnull:
            end("the program writes a file before its backward pass")
    elif event.startswith(_ENDS):
        end(f"the program calls {event} before its backward pass")
