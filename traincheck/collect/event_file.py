"""The file of one thread's records: appended to, never buffered here.

Knows bytes and descriptors, no records.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic

_ASKED_AFTER = 1 << 22  # bytes that are written before the disk is asked again, or
_LONGEST = 1.0  # seconds: others write there too
_MIB, _MOST_LEFT = 1 << 20, 1 << 30


class LowSpaceError(OSError):
    """What is left on the disk belongs to the program: its next checkpoint must find room."""


def reserved(total: int) -> int:
    """Bytes that are left free on a disk of this size: a twentieth, of a small one more."""
    return min(_MOST_LEFT, max(total // 20, min(64 * _MIB, total // 2)))


class EventFile:
    """Opened at the first write, and again when the program has closed it.

    Args:
        path: asked where it is, whenever it is opened and when it is to be renamed.

    Attributes:
        fd: its descriptor; -1 while it is not open.
        is_torn: whether a write failed in the middle of a record.
    """

    __slots__ = ("_asked", "_at", "_end", "_id", "_path", "_room", "fd", "is_torn")

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._at = Path()
        self.fd = -1
        self.is_torn = False
        self._id: tuple[int, int] | None = None  # what the descriptor was opened for
        self._end = 0  # where it is to be after the last write
        self._asked = 0.0  # when the disk was
        self._room = 0  # bytes until it is asked again

    def write(self, data: bytes) -> None:
        """Append ``data``.

        Raises:
            LowSpaceError: the disk is nearly full; nothing of it is written.
            OSError: on a full disk, say; part of it may be written.
        """
        left = data
        try:
            if not self._is_ours():
                self._open()
            if self._room < len(data) or monotonic() - self._asked > _LONGEST:
                self._ask(len(data))
            self._room -= len(data)
            while left:
                count = os.write(self.fd, left)
                self._end += count
                left = left[count:]
        except OSError:
            written = len(data) - len(left)
            self.is_torn = written > 0 and data[written - 1 : written] != b"\n"
            raise

    def _ask(self, size: int) -> None:
        """Whether there is room on the disk for so many bytes and what the program may write."""
        self._asked, self._room = monotonic(), max(size, _ASKED_AFTER)
        try:
            found = os.fstatvfs(self.fd)
        except OSError:  # then a write tells
            return
        total = found.f_blocks * found.f_frsize
        if total > 0:  # some that are no disks say 0
            free = found.f_bavail * found.f_frsize - reserved(total)
            if free < size:
                self._room = 0
                raise LowSpaceError(errno.ENOSPC, "Little space is left on device")
            self._room = max(size, min(_ASKED_AFTER, free // 2))

    def _open(self) -> None:
        self._at = self._path()
        self.fd = os.open(self._at, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        found = os.fstat(self.fd)
        self._id = (found.st_dev, found.st_ino)
        self._end = os.lseek(self.fd, 0, os.SEEK_END)

    def _is_ours(self) -> bool:
        """Whether the descriptor still is that of our file. Asked before each write.

        A program that closes all it finds, as daemons do, gets the number for a file of its own.
        Where that stands differs, as a rule, which takes half the time of asking what it is; in a
        forked child it is our parent's that moves.
        """
        if self.fd < 0:
            return False
        try:
            if self._end and os.lseek(self.fd, 0, os.SEEK_CUR) == self._end:
                return True
            found = os.fstat(self.fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._id

    def rename(self) -> None:
        """Move it to where it is now to be."""
        if self.fd >= 0:
            before, self._at = self._at, self._path()
            before.rename(self._at)

    def leave(self) -> None:
        """Close the descriptor if it is ours: a forked child writes a file of its own."""
        if self._is_ours():
            os.close(self.fd)
        self.fd = -1
