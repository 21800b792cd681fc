"""The file of one thread's records: append-only, and each byte is written once.

Records are copied into memory that is mapped to the end of the file. So each is in the file at
once, without a call of the system, and stays there whatever becomes of the process. The file is
longer than its records meanwhile; zeros follow them. Memory beyond the end of a file, or without
space on the disk, would end the process when it is written to. So the space is reserved first, and
only where the file system keeps that promise. Elsewhere records are collected in private memory and
written.

Handles bytes and descriptors, not records. System functions are bound at import, so a program that
replaces ``os.write`` for a test does not see the calls of traincheck.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, flock
from mmap import (
    ALLOCATIONGRANULARITY,
    MAP_ANONYMOUS,
    MAP_PRIVATE,
    MAP_SHARED,
    PROT_READ,
    PROT_WRITE,
    mmap,
)
from os import O_APPEND, O_CLOEXEC, O_CREAT, O_RDWR, O_TRUNC, O_WRONLY, SEEK_END
from pathlib import Path
from time import monotonic

from traincheck.handlers import give_back
from traincheck.schema.files import WINDOW, end_of_data

_ASKED_AFTER = 1 << 22  # bytes that are written before the free space is read again, or
_LONGEST = 1.0  # seconds: other programs write there too
_MIB, _MOST_LEFT = 1 << 20, 1 << 30
LARGE = WINDOW // 2  # more bytes at once are written, not copied
_FLAGS = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC
_open, _close, _write, _rename = os.open, os.close, os.write, os.rename
_fstat, _fstatvfs, _lseek = os.fstat, os.fstatvfs, os.lseek
_ftruncate, _pread, _strerror = os.ftruncate, os.pread, os.strerror

_FIXED = 0x10  # MAP_FIXED
_PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS | _FIXED
# Disks of this machine on which reserved space is there when memory is written: ext2 to ext4, xfs,
# tmpfs, f2fs, overlayfs. Not copy-on-write ones, and none of the network or of a process.
_SAFE_TYPES = frozenset({0xEF53, 0x58465342, 0x01021994, 0xF2F52010, 0x794C7630})
_libc = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_FAILED = ctypes.c_void_p(-1).value


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


def _fallocate(fd: int, start: int, size: int) -> None:
    """Reserve space. Not `os.posix_fallocate`: the C library imitates it where it is missing."""
    while _libc.fallocate(fd, 0, ctypes.c_long(start), ctypes.c_long(size)):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, _strerror(number))


def _can_map(fd: int) -> bool:
    """Whether memory may be mapped to a file, and no other process maps it.

    Processes with the same number in two containers have the same file.
    """
    if not sys.platform.startswith("linux") or WINDOW % ALLOCATIONGRANULARITY:
        return False
    found = (ctypes.c_long * 64)()
    if _libc.fstatfs(fd, found) or found[0] not in _SAFE_TYPES:
        return False
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except OSError as error:
        give_back(error)
        return False
    return True


class EventFile:
    """Opened at the first write, and again when the program has closed it.

    A signal handler of the program may run between any two instructions, and raise or write. So
    unwritten bytes are kept here, and the next write finishes an interrupted one. Methods that get
    a ``turn`` do nothing more once `turn` has another value: a handler has written then. Their
    tests of it come right before the call or the stores that they guard, with no call between.

    Args:
        path: returns its path, for opening and renaming it.

    Attributes:
        append: copies records into the memory, while it is open; ValueError if they do not fit.
        is_open: whether `append` may be used.
        is_mapped: whether what `append` copies is in the file.
        turn: number of the last call that began to write.
        fd: its descriptor; -1 while it is not open.
        left: bytes that are not written yet. None while the memory is open.
        is_torn: whether the file ends within a record.
    """

    __slots__ = (
        "_asked", "_at", "_can_map", "_end", "_id", "_is_padded", "_is_sure", "_memory",
        "_path", "_place", "_room", "_start", "append", "fd", "is_mapped", "is_open", "is_torn",
        "left", "turn",
    )  # fmt: skip

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._at = Path()
        # Parts of the file are mapped in its place: an object for a file keeps a descriptor, and
        # would close it after the program has closed all and got the same number for its own
        self._memory = mmap(-1, WINDOW, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._place = (address, WINDOW, PROT_READ | PROT_WRITE)
        self.append = self._memory.write
        self.is_open = self.is_mapped = False
        self.turn = 0
        self.fd = -1
        self.left = b""
        self.is_torn = False
        self._can_map: bool | None = None  # None: not known yet
        self._start = 0  # position of the memory in the file
        self._is_padded = False  # whether zeros follow the records in the file
        self._id: tuple[int, int] | None = None  # the file that the descriptor was opened for
        self._end = 0  # length of the file without padding, as far as known
        self._is_sure = True  # whether ``left`` and ``_end`` include each write
        self._asked = 0.0  # when the free space was read
        self._room = 0  # bytes until it is read again

    # -- the memory. Nobody appends meanwhile

    @property
    def is_written(self) -> bool:
        """Whether records are to be written, as the memory cannot be mapped to the file.

        Raises:
            OSError: it cannot be opened.
        """
        if self._can_map is None:
            if not self._is_ours():
                self._open()
            self._can_map = _can_map(self.fd)
        return not self._can_map

    def fits(self, size: int) -> bool:
        """Whether so many bytes can be appended."""
        return self._memory.tell() + size <= WINDOW

    def begin(self, turn: int) -> None:
        """Provide memory for the next records.

        Raises:
            LowSpaceError: the disk is nearly full.
            OSError: for example on a full disk.
        """
        if not self._is_ours():
            self._open()
        self._ask(WINDOW)
        if self._is_padded and self.is_written:
            self._cut(turn)
        end = self._end
        start = end if self.is_written else end // ALLOCATIONGRANULARITY * ALLOCATIONGRANULARITY
        if not self.is_written and not self._map(start, turn):
            self._can_map = False
            return
        if self.turn == turn:
            self._memory.seek(end - start)
        if self.turn == turn:
            self._start, self.is_open, self.is_mapped = start, True, self._can_map is True

    def _map(self, start: int, turn: int) -> bool:
        """Map the memory to a part of the file; False, and private memory, if it is impossible."""
        if self.turn == turn:
            self._is_padded = True
            try:
                _fallocate(self.fd, start, WINDOW)
            except OSError as error:  # no support, or a full disk: a write uses what is left
                give_back(error)
                if self.turn == turn:
                    _map(*self._place, _PRIVATE, -1, 0)
                return False
        if self.turn == turn and _map(*self._place, MAP_SHARED | _FIXED, self.fd, start) == _FAILED:
            if self.turn == turn and _map(*self._place, _PRIVATE, -1, 0) == _FAILED:
                raise OSError(errno.ENOMEM, _strerror(errno.ENOMEM))  # there is no memory now
            return False
        return True

    def settle(self, turn: int) -> None:
        """The memory is no longer used: what it has is in the file, or left to be written."""
        used = self._memory.tell()
        data = self._memory[:used] if self.is_open and not self.is_mapped else b""
        if self.turn == turn and self.is_open:
            self.left += data
            if self.is_mapped:
                self._end, self._is_sure, self._is_padded = self._start + used, True, True
            self.is_open = self.is_mapped = False

    def empty(self, size: int) -> bool:
        """Remove all records, if all of them are written and have so many bytes."""
        if self.is_open or self.left or self._end != size or not self._is_ours():
            return False
        self._end, self._is_padded = 0, True
        self._cut(self.turn)
        return True

    # -- plain writes

    def write(self, turn: int) -> None:
        """Append what is left, and cut off the zeros behind the records.

        Raises:
            LowSpaceError: the disk is nearly full; nothing was written.
            OSError: for example on a full disk; a part may be written.
        """
        if not self._is_ours():
            if not self.left and not self._is_padded:
                return
            self._open()
        self._cut(turn)
        size = len(self.left)
        if size:
            self._ask(size)
        while self.left and self.turn == turn:
            self._write_some()

    def _cut(self, turn: int) -> None:
        """Cut off the zeros. The memory is no part of the file then: reading it would be SIGBUS."""
        if self._is_padded and self.turn == turn:
            _map(*self._place, _PRIVATE, -1, 0)
        if self._is_padded and self.turn == turn:
            _ftruncate(self.fd, self._end)
        if self.turn == turn:
            self._is_padded = False

    def _write_some(self) -> None:
        if not self._is_sure:
            self._find_out(_lseek(self.fd, 0, SEEK_END))
        left, end = self.left, self._end
        if not left:  # a handler has written it
            return
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
        if self._room >= size and monotonic() - self._asked <= _LONGEST:
            self._room -= size
            return
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
            self._room = max(size, min(_ASKED_AFTER, free // 2)) - size

    def _open(self) -> None:
        self._at = self._path()
        self.fd = _open(self._at, _FLAGS, 0o600)
        known, found = self._id, _fstat(self.fd)
        self._id = (found.st_dev, found.st_ino)
        if self._is_sure or self._id != known:
            end = end_of_data(self.fd)
            self.is_torn = end > 0 and _pread(self.fd, 1, end - 1) != b"\n"
            self._end, self._is_sure, self._is_padded = end, True, found.st_size > end

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
        self.turn += 1
        self.is_open = self.is_mapped = self._is_padded = False
        if self._is_ours():
            _close(self.fd)
        self.fd, self.left, self._is_sure, self._can_map = -1, b"", True, None
        _map(*self._place, _PRIVATE, -1, 0)  # not the parent's
