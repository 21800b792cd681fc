"""The file of one thread's records: append-only, and each byte is written once.

Handles bytes and descriptors, not records. System functions are bound at import, so a program that
replaces ``os.write`` for a test does not see the calls of traincheck.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from os import O_APPEND, O_CLOEXEC, O_CREAT, O_TRUNC, O_WRONLY, SEEK_END
from pathlib import Path
from time import monotonic

from traincheck.handlers import give_back

_ASKED_AFTER = 1 << 22  # bytes that are written before the free space is read again, or
_LONGEST = 1.0  # seconds: other programs write there too
_MIB, _MOST_LEFT = 1 << 20, 1 << 30
_FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC
_open, _close, _write, _rename = os.open, os.close, os.write, os.rename
_fstat, _fstatvfs, _lseek = os.fstat, os.fstatvfs, os.lseek


def write_file(path: str, data: bytes) -> None:
    """Write a small file, a note for the launcher.

    Raises:
        OSError: it cannot be written.
    """
    fd = _open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
    try:
        _write(fd, data)
    finally:
        _close(fd)


class LowSpaceError(OSError):
    """The remaining disk space is reserved for the program and its next checkpoint."""


def reserved(total: int) -> int:
    """Bytes that stay free on a disk of this size: a twentieth, more of a small one."""
    return min(_MOST_LEFT, max(total // 20, min(64 * _MIB, total // 2)))


class EventFile:
    """Opened at the first write, and again when the program has closed it.

    A signal handler of the program may run between any two instructions, and raise or write. So
    unwritten bytes are kept here, and the next write finishes an interrupted one.

    Args:
        path: returns its path, for opening and renaming it.

    Attributes:
        fd: its descriptor; -1 while it is not open.
        left: bytes that are not written yet.
        is_torn: whether the file ends within a record.
    """

    __slots__ = (
        "_asked", "_at", "_end", "_id", "_is_sure", "_path", "_room", "fd", "is_torn", "left",
    )  # fmt: skip

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._at = Path()
        self.fd = -1
        self.left = b""
        self.is_torn = False
        self._id: tuple[int, int] | None = None  # the file that the descriptor was opened for
        self._end = 0  # length of the file, as far as known
        self._is_sure = True  # whether ``left`` and ``_end`` include each write
        self._asked = 0.0  # when the free space was read
        self._room = 0  # bytes until it is read again

    def write(self) -> None:
        """Append what is left.

        Raises:
            LowSpaceError: the disk is nearly full; nothing was written.
            OSError: for example on a full disk; a part may be written.
        """
        if not self._is_ours():
            self._open()
        size = len(self.left)
        if self._room < size or monotonic() - self._asked > _LONGEST:
            self._ask(size)
        self._room -= size
        while self.left:
            self._write_some()

    def _write_some(self) -> None:
        if not self._is_sure:
            self._find_out(_lseek(self.fd, 0, SEEK_END))
        left, end = self.left, self._end
        self._is_sure = False
        count = _write(self.fd, left)
        # Any other result would make the loop endless
        if type(count) is not int or not 0 < count <= len(left):
            raise OSError(errno.EIO, f"write returned {count!r} for {len(left)} bytes")
        if self._end == end:  # else a handler that ran since has measured it. No call from here on:
            self.is_torn = left[count - 1 : count] != b"\n"
            self.left, self._end, self._is_sure = left[count:], end + count, True

    def _find_out(self, end: int) -> None:
        """Find out how much was written by an interrupted write, from the length of the file."""
        if end > self._end:
            count = end - self._end
            self.is_torn = self.left[count - 1 : count] != b"\n"
            self.left, self._end = self.left[count:], end
        self._is_sure = True

    def drop(self) -> int:
        """Discard the unwritten bytes. Returns the number of lost records, a torn one included."""
        records = self.left.count(b"\n")
        self.left = b""
        return records

    def _ask(self, size: int) -> None:
        """Whether the disk has space for so many bytes and the reserve of the program."""
        self._asked, self._room = monotonic(), max(size, _ASKED_AFTER)
        try:
            found = _fstatvfs(self.fd)
        except OSError as error:  # a write shows it then
            give_back(error)
            return
        total = found.f_blocks * found.f_frsize
        if total > 0:  # some file systems that are not disks report 0
            free = found.f_bavail * found.f_frsize - reserved(total)
            if free < size:
                self._room = 0
                raise LowSpaceError(errno.ENOSPC, "Little space is left on device")
            self._room = max(size, min(_ASKED_AFTER, free // 2))

    def _open(self) -> None:
        self._at = self._path()
        self.fd = _open(self._at, _FLAGS, 0o600)
        known, found = self._id, _fstat(self.fd)
        self._id = (found.st_dev, found.st_ino)
        end = _lseek(self.fd, 0, SEEK_END)
        if self._is_sure or self._id != known:
            self._end, self._is_sure = end, True

    def _is_ours(self) -> bool:
        """Whether the descriptor still belongs to this file. Tested before each write.

        A program that closes all descriptors, as daemons do, may get the same number for another
        file. Only device and inode show this: a file of the program may have the same length.
        """
        if self.fd < 0:
            return False
        try:
            found = _fstat(self.fd)
        except OSError as error:
            give_back(error)
            return False
        return (found.st_dev, found.st_ino) == self._id

    def rename(self) -> None:
        """Move it to its new path."""
        if self.fd >= 0:
            before, self._at = self._at, self._path()
            _rename(before, self._at)

    def leave(self) -> None:
        """Close the descriptor if it belongs to this file: a forked child writes another file."""
        if self._is_ours():
            _close(self.fd)
        self.fd, self.left, self._is_sure = -1, b"", True
