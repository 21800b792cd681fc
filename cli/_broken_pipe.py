"""Messages beside those of a program, also where nobody reads them: a closed pipe, a full disk."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from typing import TextIO

from traincheck.schema.files import open_regular


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
            return "" if mode.st_size == 0 or _last_byte(descriptor) == b"\n" else "\n"
    except (OSError, ValueError):  # a stream without a file, such as that of a notebook
        return ""
    return "\n" if is_written and not stat.S_ISCHR(mode.st_mode) else ""


def _last_byte(descriptor: int) -> bytes:
    """That of a regular file, which may be open for writing only."""
    with open_regular(f"/proc/self/fd/{descriptor}", buffering=0) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)
