"""The file of one thread's records: appended to, never buffered here.

Knows bytes and descriptors, no records.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# The descriptor lies above those that a program opens, and that it closes in a row. So it is not
# asked before each write whether it still is ours: that takes half as long as the write.
_LOWEST = 512
_SURE_NS = 100_000_000


class EventFile:
    """Opened at the first write, and again when the program has closed it.

    Args:
        path: asked where it is, whenever it is opened and when it is to be renamed.

    Attributes:
        fd: its descriptor; -1 while it is not open.
        is_torn: whether a write failed in the middle of a record.
    """

    __slots__ = ("_at", "_id", "_path", "_sure_until_ns", "fd", "is_torn")

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._at = Path()
        self.fd = -1
        self.is_torn = False
        self._id: tuple[int, int] | None = None  # what the descriptor was opened for
        self._sure_until_ns = 0  # that it still is

    def write(self, data: bytes, now_ns: int) -> None:
        """Append ``data``. now_ns: the monotonic clock.

        Raises:
            OSError: on a full disk, say; part of it may be written.
        """
        left = data
        try:
            if now_ns > self._sure_until_ns and not self._is_ours(now_ns):
                self._open()
            while left:
                try:
                    left = left[os.write(self.fd, left) :]
                except OSError as error:
                    if error.errno != errno.EBADF:
                        raise
                    self._open()  # the program has closed all that it found
        except OSError:
            written = len(data) - len(left)
            self.is_torn = written > 0 and data[written - 1 : written] != b"\n"
            raise

    def _open(self) -> None:
        self._at = self._path()
        fd = os.open(self._at, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        found = os.fstat(fd)
        self.fd, self._id, self._sure_until_ns = fd, (found.st_dev, found.st_ino), 0
        with suppress(OSError):  # fewer are allowed
            self.fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
            os.close(fd)

    def _is_ours(self, now_ns: int) -> bool:
        """Whether the descriptor still is that of our file.

        A program that closes all it finds, as daemons do, gets the number for a file of its own.
        """
        if self.fd < 0:
            return False
        try:
            found = os.fstat(self.fd)
        except OSError:
            return False
        is_ours = (found.st_dev, found.st_ino) == self._id
        if is_ours and self.fd >= _LOWEST:
            self._sure_until_ns = now_ns + _SURE_NS
        return is_ours

    def rename(self) -> None:
        """Move it to where it is now to be."""
        if self.fd >= 0:
            before, self._at = self._at, self._path()
            before.rename(self._at)

    def leave(self) -> None:
        """Close the descriptor if it is ours: a forked child writes a file of its own."""
        if self._is_ours(0):
            os.close(self.fd)
        self.fd, self._sure_until_ns = -1, 0
