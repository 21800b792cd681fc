"""Copies of the user's source files into the run directory.

A comparison of two runs shows the lines that differ, also after the checkout has moved on. Copies
are named by their content, so the processes of a run share them.
"""

from __future__ import annotations

import errno
import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
import xxhash

from traincheck.collect import masking
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.event_file import LowSpaceError, reserved
from traincheck.collect.trace_writer.marks import write
from traincheck.handlers import give_back
from traincheck.schema.layout import SOURCES
from traincheck.schema.observations.processes import Sources
from traincheck.schema.reading import read_regular

MOST_FILES = 200
MOST_BYTES = 1 << 20  # of one file
_SUFFIX = ".py"
_INSTALLED = ("/site-packages/", "/dist-packages/")
_OURS = __name__.partition(".")[0]
_OWN = str(Path(__file__).parents[2])
_LIBRARIES = tuple(
    f"{os.path.realpath(folder)}{os.sep}"
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
        str(Path(torch.__file__).parent),
        _OWN,
    }
)
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_open, _close, _write, _mkdir, _statvfs = os.open, os.close, os.write, os.mkdir, os.statvfs
_stat, _time = os.stat, time.time


class ProgramSourceObserver(Observer):
    """Copies the files of modules that were imported, at the end of a step and of the run."""

    produces: ClassVar = (Sources,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self._modules = 0
        self._looked_at: set[str] = set()
        self._met: set[str] = set()
        self._left_out = 0
        self._began = _time()

    def install(self, patcher: Patcher) -> None:
        if self._session.settings.source:
            self.listen(self._session.hooks.at_step_end, self._look)
            self.listen(self._session.hooks.at_close, self._look)

    def _look(self, em: Emitter) -> None:
        """Copy the files of modules that are new since the last look."""
        count = len(sys.modules)
        if count == self._modules or self._session.is_worker:
            return
        self._modules = count
        files: dict[str, str] = {}
        changed: list[str] = []
        known = self._left_out
        for path in own_files(self._looked_at):
            if path in self._met:
                continue
            self._met.add(path)
            copy = self._copied(path) if len(self._met) <= MOST_FILES else None
            if copy is None:
                self._left_out += 1
                continue
            files[path] = copy
            if _stat(path).st_mtime > self._began:
                changed.append(path)
        if files or self._left_out > known:
            write(em, Sources(_script(), files, tuple(changed), self._left_out))

    def _copied(self, path: str) -> str | None:
        """Name of the copy of a file; None if there is none."""
        try:
            content = masking.source(read_regular(path, MOST_BYTES))
            name = f"{xxhash.xxh3_64_hexdigest(content)}{_SUFFIX}"
            _put(f"{self._session.settings.directory}/{SOURCES}", name, content)
        except (OSError, ValueError) as error:
            give_back(error)
            return None
        return name


def own_files(looked_at: set[str]) -> Iterator[str]:
    """Paths of the source files of loaded modules that are the user's, the script first.

    looked_at: the files of modules that are not to be looked at again; gets those of this look.
    """
    folders: dict[str, str] = {}  # as links lead to them: thousands of modules lie in a few hundred
    for name in ("__main__", *list(sys.modules)):
        given = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
        if type(given) is not str or not given.endswith(_SUFFIX) or given in looked_at:
            continue
        looked_at.add(given)
        if name.partition(".")[0] == _OURS:  # in a checkout, its folders lie apart
            continue
        folder, file = os.path.split(given)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        path = os.path.join(folders[folder], file)
        path = os.path.realpath(path) if os.path.islink(path) else path
        if _is_own(path):
            yield path


def _is_own(path: str) -> bool:
    return not path.startswith(_LIBRARIES) and not any(part in path for part in _INSTALLED)


def _script() -> str:
    given = getattr(sys.modules.get("__main__"), "__dict__", {}).get("__file__")
    return os.path.realpath(given) if type(given) is str and given.endswith(_SUFFIX) else ""


def _put(folder: str, name: str, content: bytes) -> None:
    """Write a copy, if no process of the run has. Another process may be writing the same.

    Raises:
        OSError: it cannot be written, or the space on the disk is reserved for the program.
    """
    try:
        _mkdir(folder, 0o700)
    except FileExistsError as error:
        give_back(error)
    found = _statvfs(folder)
    total = found.f_blocks * found.f_frsize
    if total and found.f_bavail * found.f_frsize - reserved(total) < len(content):
        raise LowSpaceError(errno.ENOSPC, "Little space is left on device")
    try:
        descriptor = _open(f"{folder}/{name}", _FLAGS, 0o600)
    except FileExistsError as error:
        give_back(error)
        return
    try:
        _write(descriptor, content)
    finally:
        _close(descriptor)
