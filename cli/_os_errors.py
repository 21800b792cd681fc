"""Errors of the operating system about paths that the user gave, as messages with a fix."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import traincheck

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
