"""Facts of the process: threads, settings of torch, versions, the commit and source of the program.

Read before the first outermost forward, when the program has made its settings, and compared before
those of later recorded steps. Reading them sets nothing and starts no device.

The user's source files are copied into the run directory: a comparison of two runs shows the lines
that differ, also after the checkout has moved on. Copies are named by their content, so the
processes of a run share them.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from os import sched_getaffinity
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import xxhash

from traincheck.collect import masking
from traincheck.collect.launch.run_manifest import ENVIRONMENT
from traincheck.collect.launch.script import commit_of
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.tensors import devices
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.event_file import LowSpaceError, reserved
from traincheck.collect.trace_writer.marks import write
from traincheck.handlers import give_back
from traincheck.schema.files import read_regular
from traincheck.schema.layout import SOURCES
from traincheck.schema.observations.processes import ProcessFacts, Sources

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_MOST_VERSIONS = 256
_VERSION = re.compile(r"[\w.+\-!]{1,64}\Z", re.ASCII)

# Functions of torch that return a setting, by its name in the record. All are in C and read a flag.
_FLAGS: Mapping[str, str] = {
    "deterministic": "_get_deterministic_algorithms",
    "deterministic_warn_only": "_get_deterministic_algorithms_warn_only",
    "cudnn.deterministic": "_get_cudnn_deterministic",
    "cudnn.benchmark": "_get_cudnn_benchmark",
    "cudnn.enabled": "_get_cudnn_enabled",
    "mkldnn.enabled": "_get_mkldnn_enabled",
    "float32_matmul_precision": "_get_float32_matmul_precision",
    "tf32.matmul": "_get_cublas_allow_tf32",
    "tf32.cudnn": "_get_cudnn_allow_tf32",
    "fp16_reduced": "_get_cublas_allow_fp16_reduced_precision_reduction",
    "bf16_reduced": "_get_cublas_allow_bf16_reduced_precision_reduction",
    "sdp.flash": "_get_flash_sdp_enabled",
    "sdp.mem_efficient": "_get_mem_efficient_sdp_enabled",
    "sdp.math": "_get_math_sdp_enabled",
}


class ProcessFactsObserver(Observer):
    """Observes what decides the bits of results beside the program and its data."""

    produces: ClassVar = (ProcessFacts,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._known: tuple[Any, ...] = ()
        self._facts: ProcessFacts | None = None
        self._step: int | None = -1

    def install(self, patcher: Patcher) -> None:
        self.listen(self._session.hooks.before_forward, self._look)

    def _look(self, em: Emitter) -> None:
        """An outermost forward begins: write the facts if they are other than before."""
        step = self._session.clock.step
        if step == self._step:
            return
        self._step = step
        found = _settings()
        if found == self._known:
            return
        self._known = found
        threads, interop, flags = found
        if self._facts is None:
            self._facts = _facts(threads)
        changed = replace(
            self._facts,
            threads=threads,
            interop_threads=interop,
            flags=dict(flags),
            gpus=devices.names(),
        )
        write(em, changed)


def _settings() -> tuple[int, int, tuple[tuple[str, Any], ...]]:
    """Threads, and the settings of torch that a program may change at any time."""
    flags: list[tuple[str, Any]] = [("default_dtype", str(torch.get_default_dtype())[6:])]
    for name, function in _FLAGS.items():
        get = getattr(torch._C, function, None)
        if get is not None:
            flags.append((name, _flag(name, get)))
    return torch.get_num_threads(), torch.get_num_interop_threads(), tuple(flags)


def _flag(name: str, get: Any) -> Any:
    """A setting; after a use of the newer interface for TF32 the older one raises."""
    try:
        return get()
    except RuntimeError as error:
        give_back(error)
    backend, operation = ("cuda", "matmul") if name == "tf32.matmul" else ("cuda", "conv")
    try:
        return torch._C._get_fp32_precision_getter(backend, operation)
    except (AttributeError, RuntimeError) as error:
        give_back(error)
        return None


def _facts(threads: int) -> ProcessFacts:
    """Facts that stay as they are while a process runs."""
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return ProcessFacts(
        threads=threads,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        machine=platform.machine(),
        processors=len(sched_getaffinity(0)),
        hash_seed=environment.get("PYTHONHASHSEED"),
        versions=_versions(),
        commit=_commit(),
        environment=environment,
    )


def _versions() -> dict[str, str]:
    """Versions of Python, of the libraries in torch, and of all packages that are loaded."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name, value in (("cuda", torch.version.cuda), ("hip", torch.version.hip)):
        if isinstance(value, str):
            found[name] = value
    for name, module in list(sys.modules.items()):
        is_known = "." in name or name.startswith("_") or name in sys.stdlib_module_names
        version: Any = None if is_known else getattr(module, "__dict__", {}).get("__version__")
        is_text = type(version) is str and _VERSION.match(version) and _VERSION.match(name)
        if is_text and len(found) < _MOST_VERSIONS:
            found[name] = version
    return dict(sorted(found.items()))


def _commit() -> str:
    """The commit of the checkout of the program; of the working directory without a script."""
    script = sys.argv[0] if sys.argv else ""
    folder = Path(script).parent if script and Path(script).is_file() else Path()
    try:
        return commit_of(folder.absolute())
    except (OSError, ValueError) as error:
        give_back(error)
        return ""


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
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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
        if not path.startswith(_LIBRARIES) and not any(part in path for part in _INSTALLED):
            yield path


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
        descriptor = _open(f"{folder}/{name}", _NEW_FILE, 0o600)
    except FileExistsError as error:
        give_back(error)
        return
    try:
        _write(descriptor, content)
    finally:
        _close(descriptor)
