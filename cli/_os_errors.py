"""Errors of the operating system: about paths, and about streams that nobody reads."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import click

import traincheck
from traincheck.schema.files import open_regular

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_OURS = Path(traincheck.__file__).parent
_FIXES = {
    errno.EACCES: "check its permissions, or choose another path",
    errno.EPERM: "check its permissions, or choose another path",
    errno.EROFS: "choose a path on a disk that can be written",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ENOENT: "check the path, and that no other program moves or removes it",
    errno.ENOTDIR: "check the path, and that no other program moves or removes it",
    errno.ESTALE: "check the path, and that no other program moves or removes it",
    errno.ELOOP: "correct the symbolic link, which points to itself",
    errno.EISDIR: "name a file, not a folder",
    errno.EEXIST: "choose another path",
    errno.EBUSY: "wait until no program uses it, or choose another path",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
    errno.ENFILE: "raise the limit of open files: ulimit -n",
}


def bad_path(error: OSError) -> tuple[str, str] | None:
    """The fault and the fix, where the error is about a path that is not part of traincheck.

    None where it may be a bug of ours.
    """
    path = error.filename
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if error.errno in _NO_ROOM:
        return f"{path or 'the output'}: cannot be written: {error.strerror}", (
            "free disk space, or write to another disk"
        )
    if path is None and error.errno == errno.ENOENT and not _has_working_directory():
        return "the working directory was removed", "change to a directory that exists"
    # Whether it is a file of the package, whose loss the user did not cause by an option.
    if (
        not isinstance(path, str)
        or error.errno not in _FIXES
        or (os.path.isabs(path) and Path(path).is_relative_to(_OURS))
    ):
        return None
    return f"{path}: {error.strerror}", _FIXES[error.errno]


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def discard_stream(stream: TextIO) -> None:
    """Python flushes once more at exit; that must not fail loudly, nor change the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def ignore_closed_stderr() -> Iterator[None]:
    """Say something on stderr; where that fails, the exit status stays what it is."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):  # a stream without a file
            discard_stream(sys.stderr)


def say(text: str) -> None:
    """Write a line to stderr, wherever a program left the cursor."""
    with ignore_closed_stderr():
        click.echo(line_start(sys.stderr) + text, err=True)


def line_start(stream: TextIO, *, is_written: bool = False) -> str:
    """The text to write first, so that output begins a line wherever the program left the cursor.

    A terminal gets spaces for all but one of its columns, and a carriage return: at the beginning
    of a line they stay within it, from elsewhere they lead to the next one. The end of a regular
    file is read. A pipe gets a line break if ``is_written``: a program writes to it at this time.
    """
    try:
        descriptor = stream.fileno()
        if stream.isatty():
            columns = os.get_terminal_size(descriptor).columns  # 0 where nobody set it
            return " " * (columns - 1) + "\r" if columns else "\n"
        mode = os.fstat(descriptor)
        if stat.S_ISREG(mode.st_mode):
            if mode.st_size == 0:
                return ""
            # Once more by its name, as it may be open for writing only.
            with open_regular(f"/proc/self/fd/{descriptor}", buffering=0) as file:
                file.seek(-1, os.SEEK_END)
                return "" if file.read(1) == b"\n" else "\n"
    except (OSError, ValueError):  # a stream without a file, such as that of a notebook
        return ""
    return "\n" if is_written and not stat.S_ISCHR(mode.st_mode) else ""
