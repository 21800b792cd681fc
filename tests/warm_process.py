"""The warm process of tests/warm.py: loads torch and traincheck, and forks a copy for each job.

A copy takes over the streams and environment of the program, runs sitecustomize of PYTHONPATH and
the program, and ends as Python ends. The warm process has no threads.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

_LOADED = (
    "numpy",
    "pandas",
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.utils.data",
    "torch.utils.checkpoint",
)
sys.path[:] = sys.path[1:]
_PATHS = list(sys.path)  # those of any program of this environment
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests import warm  # noqa: E402  # of this checkout, whatever is installed

del sys.path[0]


def _load() -> None:
    """Import what programs of tests import, and run nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _LOADED:
            importlib.import_module(name)
        import traincheck
        import traincheck.cli.main

        for package in (traincheck, traincheck.cli):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                if ".integrations" in module.name or ".bootstrap" in module.name:
                    continue
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
    import torch.library

    # Torch takes each of its operators apart at the end, which is most of what a copy would cost.
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        _, function, *_ = each.peek()
        if function is torch.library._del_library:
            each.atexit = False
    gc.collect()
    gc.freeze()
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    # jemalloc, which pyarrow brings, sees to its thread at a fork itself.
    others = [name for name in threads[1:] if name != "jemalloc_bg_thd"]
    assert not others, f"a process with threads cannot be forked: {others}"


def serve(address: str) -> dict[str, Any]:
    """Fork a copy for each job that is asked for. Returns the job, in the copy."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{address}.new")
    listening.listen(64)
    os.rename(f"{address}.new", address)  # what finds it can connect
    ended, ending = socket.socketpair()
    ended.setblocking(False)
    ending.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(ending.fileno())
    running: dict[int, socket.socket] = {}
    waiting = selectors.DefaultSelector()
    for file in (0, listening, ended):
        waiting.register(file, selectors.EVENT_READ)
    is_loaded = False
    while True:
        ready = {key.fileobj for key, _ in waiting.select()}
        if 0 in ready:  # the pipe of the test run, which has ended
            os._exit(0)
        if ended in ready:
            with contextlib.suppress(BlockingIOError):
                ended.recv(4096)
            _report_ended(running)
        if listening in ready:
            if not is_loaded:
                _load()
                is_loaded = True
            connection, _ = listening.accept()
            job = _forked(connection, running)
            if job is not None:
                signal.set_wakeup_fd(-1)
                waiting.close()
                for each in (listening, ended, ending, connection, *running.values()):
                    each.close()
                return job


def _forked(connection: socket.socket, running: dict[int, socket.socket]) -> dict[str, Any] | None:
    """Read a job and fork a copy for it. Returns the job in the copy, None in the warm process."""
    try:
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        (size,) = warm.HEAD.unpack(warm.exactly(connection, warm.HEAD.size))
        job = json.loads(warm.exactly(connection, size).decode("utf-8", "surrogateescape"))
    except (OSError, ValueError):
        connection.close()
        return None
    pid = os.fork()
    if pid == 0:
        if job["session"]:
            os.setsid()
        else:
            with contextlib.suppress(OSError):
                os.setpgid(0, job["group"])
        with contextlib.suppress(OSError):  # only now: who asked may signal its group at once
            connection.sendall(warm.HEAD.pack(os.getpid()))
        return {**job, "streams": streams}
    for fd in streams:
        os.close(fd)
    running[pid] = connection
    return None


def _report_ended(running: dict[int, socket.socket]) -> None:
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        with contextlib.suppress(OSError), running.pop(pid) as connection:
            said = (status, usage.ru_utime, usage.ru_stime, usage.ru_maxrss)
            connection.sendall(warm.ENDED.pack(*said))


def _become(job: Mapping[str, Any]) -> tuple[types.ModuleType, list[str]]:
    """Take over the streams, folder, environment and paths of the program, as Python would."""
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):  # not: SIGPIPE
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for own, fd in enumerate(job["streams"]):
        os.dup2(fd, own)
    for fd in job["streams"]:
        if fd > 2:
            os.close(fd)
    os.umask(job["umask"])
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    _, *words = job["args"]
    unbuffered = words[0] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    words = words[1:] if words[0] == "-u" else words
    _open_streams(unbuffered)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.orig_argv[:] = job["args"]
    sys.warnoptions[:] = filter(None, os.environ.get("PYTHONWARNINGS", "").split(","))
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    _seed()
    extra = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    _give_way_to([*extra, job["cwd"] if words[0][:1] == "-" else _folder_of(words[0])], job["args"])
    sys.path[:] = [*extra, *_PATHS]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    warm.use(sys.argv[1])
    main = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    if any(os.path.exists(os.path.join(path, "sitecustomize.py")) for path in extra):
        sys.modules.pop("sitecustomize", None)
        try:
            importlib.import_module("sitecustomize")
        except ImportError as error:
            if error.name != "sitecustomize":
                raise
    return main, words


def _folder_of(script: str) -> str:
    return os.path.dirname(os.path.realpath(script))


def _give_way_to(folders: list[str], args: list[str]) -> None:
    """Forget traincheck where a program has its own; start Python where it hides other modules."""
    hidden = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            names = {entry.partition(".")[0]: entry for entry in os.listdir(folder)}
            for name in names.keys() & sys.modules.keys() - {"__main__", "sitecustomize"}:
                origin = getattr(sys.modules[name], "__file__", None) or ""
                path = os.path.join(folder, names[name])
                is_module = os.path.exists(os.path.join(path, "__init__.py")) or path.endswith(
                    ".py"
                )
                if is_module and not os.path.realpath(origin).startswith(os.path.realpath(path)):
                    hidden.add(name)
    if hidden - {"traincheck"}:
        os.execv(args[0], args)
    for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
        del sys.modules[name]


def _open_streams(unbuffered: bool) -> None:
    for own, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        raw = io.FileIO(own, mode, closefd=False)
        buffered: Any = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        whole = name == "stderr" or os.isatty(own)
        stream = io.TextIOWrapper(
            io.FileIO(own, mode, closefd=False) if unbuffered and mode == "w" else buffered,  # type: ignore[arg-type]
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "strict",
            line_buffering=whole,
            write_through=unbuffered,
        )
        stream.mode = mode  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _seed() -> None:
    """Draws that nothing seeds differ between programs."""
    import random

    import numpy as np
    import torch

    random.seed()
    np.random.seed()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))


def _run(main: types.ModuleType, words: list[str]) -> None:
    """Run a program as ``python WORDS`` does."""
    first, *rest = words
    names = vars(main)
    if first == "-m":
        sys.argv[:] = ["-m", *rest[1:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif first == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), names)
    else:
        sys.argv[:] = words
        sys.path.insert(0, _folder_of(first))
        names["__file__"] = first
        names["__cached__"] = None
        try:
            source = Path(first).read_bytes()
        except OSError as error:
            said = f"can't open file {os.path.abspath(first)!r}: [Errno {error.errno}] "
            sys.stderr.write(f"{sys.executable}: {said}{error.strerror}\n")
            raise SystemExit(2) from None
        exec(compile(source, first, "exec"), names)


def _shown(error: BaseException) -> int:
    """Show an exception that ends a program as Python does. Returns the status."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    found = error.__traceback__
    ours = (__file__, "<frozen runpy>")
    while found is not None and found.tb_frame.f_code.co_filename in ours:
        found = found.tb_next
    sys.excepthook(type(error), error.with_traceback(found), found)
    return 1


def _end(status: int, *, interrupted: bool) -> NoReturn:
    """Do what Python does at its end, but for taking all modules apart, which costs 0.2 s."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            if stream is sys.stdout:
                status = 120
                with contextlib.suppress(OSError):
                    sys.stderr.write(f"Exception ignored in: {stream!r}\n{error!r}\n")
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _main() -> None:
    job = serve(sys.argv[1])
    status, interrupted = 0, False
    try:
        main, words = _become(job)
        _run(main, words)
    except BaseException as error:
        status, interrupted = _shown(error), isinstance(error, KeyboardInterrupt)
    _end(status, interrupted=interrupted)


if __name__ == "__main__":
    _main()
