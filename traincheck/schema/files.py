"""Atomic writing of files: a reader finds the old one or the complete new one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import orjson

from traincheck.errors import OutputError

WINDOW = 1 << 16  # bytes of an event file that its process maps; a multiple of the page size
_BLOCK = 1 << 16
_fstat, _pread = os.fstat, os.pread  # a program may replace those of the module for a test


def private(path: str, flags: int) -> int:
    """An ``opener`` for `open`: only the owner can read a new file."""
    return os.open(path, flags, 0o600)


def end_of_data(descriptor: int) -> int:
    """Where the zeros begin that end an event file while its process appends, or was killed."""
    end = _fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = len(_pread(descriptor, end - start, start).rstrip(b"\0"))
        if found:
            return start + found
        end = start
    return 0


def cut_space(path: Path) -> None:
    """Cut off the zeros that a process left at the end of its event file when it was killed.

    Not while a process has locked it: one that still writes would end by SIGBUS.
    """
    with contextlib.suppress(OSError), open(path, "rb+", opener=_unfollowed) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        end = end_of_data(file.fileno())
        if end < os.fstat(file.fileno()).st_size:
            os.ftruncate(file.fileno(), end)


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically where ``path`` is a regular file or new.

    Raises:
        OutputError: the place is not writable or the disk is full; the message names the path.
    """
    write_bytes(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write ``content``, atomically where ``path`` is a regular file or new.

    Raises:
        OutputError: the place is not writable or the disk is full; the message names the path.
    """
    try:
        put_bytes(path, content)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}",
            fix="choose a file in a writable directory, on a disk with free space",
        ) from error


def put_bytes(path: str | Path, content: bytes) -> None:
    """`write_bytes` that keeps a link, and leaves no temporary file when writing fails.

    Raises:
        OSError: it could not be written.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():  # a loop of links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_bytes(content)  # a pipe or /dev/stdout: nothing to replace
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
