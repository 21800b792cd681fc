"""The only way to open a file for reading: regular files of a limited size, without waiting.

Paths come from users, from traces and from untrusted folders. A pipe would wait for a writer, and a
device may have no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

DOCUMENT_BYTES = 1 << 26  # of a JSON or TOML document

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFDIR: "it is a directory",
    stat.S_IFIFO: "it is a pipe, not a regular file",
    stat.S_IFSOCK: "it is a socket, not a regular file",
    stat.S_IFCHR: "it is a device, not a regular file",
    stat.S_IFBLK: "it is a device, not a regular file",
}


def open_regular(
    path: str | Path, most_bytes: int | None = None, *, buffering: int = -1
) -> BinaryIO:
    """Open a regular file for reading bytes; never blocks.

    Args:
        path: of the file; links are followed.
        most_bytes: largest size that is accepted; None for any.
        buffering: as for `open`.

    Raises:
        OSError: it is not a regular file, is too large, or cannot be opened; `strerror` is the
        reason.
    """
    name = os.fspath(path)
    try:
        _refuse(os.stat(name), most_bytes, name)  # some devices act when they are opened
        descriptor = os.open(name, _FLAGS)
    except ValueError as error:  # a null byte, or text that no file name can hold
        raise OSError(errno.EINVAL, f"it is not a file name ({error})", name) from error
    try:
        _refuse(os.fstat(descriptor), most_bytes, name)  # another file may have the name now
        return os.fdopen(descriptor, "rb", buffering=buffering)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, most_bytes: int = DOCUMENT_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: as `open_regular`.
    """
    with open_regular(path, most_bytes) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:  # it grew, or its file system has no sizes
        raise _too_large(most_bytes, os.fspath(path))
    return content


def _refuse(found: os.stat_result, most_bytes: int | None, name: str) -> None:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is not None:
        raise OSError(errno.EINVAL, kind, name)
    if most_bytes is not None and found.st_size > most_bytes:
        raise _too_large(most_bytes, name)


def _too_large(most_bytes: int, name: str) -> OSError:
    return OSError(errno.EINVAL, f"it is larger than {most_bytes:,} bytes", name)
