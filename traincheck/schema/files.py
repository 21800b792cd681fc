"""Files: the only way to open one for reading, JSON within limits, and atomic writing.

Regular files of a limited size are opened, without waiting. Paths come from users, from traces and
from untrusted folders. A pipe would wait for a writer, and a device may have no end. JSON of
untrusted files is decoded within limits. A reader of a file that is written finds the old one or
the complete new one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

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


MOST_VALUES = 2_000_000  # of a document: each takes up to 100 bytes in memory
MOST_DEPTH = 100  # of nested lists and objects; orjson writes 254

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SQUARE = bytes.maketrans(b"{}", b"[]")
_LEAST, _MOST = -(1 << 63), 1 << 64
_SHOWN_BITS = 1_000


def parse_json(content: bytes) -> Any:
    """Decode JSON within limits of memory and depth.

    Raises:
        ValueError: it is not JSON, has too many values, or is nested too deeply.
    """
    openings = content.count(b"[") + content.count(b"{")
    if openings + content.count(b",") > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values")
    value = orjson.loads(content)
    if openings > MOST_DEPTH and is_deep(content):
        raise ValueError(f"nested more than {MOST_DEPTH} levels deep")
    return value


def is_deep(content: bytes) -> bool:
    """Whether JSON is nested more than `MOST_DEPTH` levels deep."""
    brackets = _STRING.sub(b"", content).translate(_SQUARE, _NO_BRACKETS)
    for _ in range(MOST_DEPTH):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def dump_json(value: Any, *, default: Callable[[Any], Any] | None = None, option: int = 0) -> bytes:
    """Encode a value as JSON; other values become text. Arguments: see `orjson.dumps`.

    Numbers of more than 64 bits become text, values nested too deeply ``...``, and lone surrogates
    escapes.
    """
    try:
        return orjson.dumps(value, default=default, option=option)
    except TypeError:
        return orjson.dumps(_fitted(value, 0), default=default, option=option)


def _fitted(value: Any, depth: int) -> Any:
    if depth > MOST_DEPTH // 2:  # it may be nested in others
        return "..."
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int):
        if _LEAST <= value < _MOST:
            return value
        # Python refuses to write much longer numbers in decimal.
        return f"{value:#x}" if value.bit_length() > _SHOWN_BITS else str(value)
    if isinstance(value, dict):
        return {str(_fitted(k, depth)): _fitted(part, depth + 1) for k, part in value.items()}
    if isinstance(value, list | tuple):
        return [_fitted(part, depth + 1) for part in value]
    return value
