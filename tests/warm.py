"""Programs that tests start are copies of a warm process, which has torch and traincheck loaded.

Python takes 1.5 s of CPU to import torch and as much for the first optimizer; a program of a test
needs a tenth of that. ``use`` lets ``subprocess`` of this process ask the warm process
(warm_process.py) for a copy instead of starting Python. The copy has the arguments, environment,
folder, streams and process group that the program would have.

A program is started as always when it is not the Python of this environment, has options but -c,
-m and -u, gets descriptors or a function to call before it starts, or has settings of the
interpreter or of torch that the warm process does not have. Tests of the launcher, of start-up and
of what is imported ask for that with the marker ``real_process``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ADDRESS = "TESTS_WARM"  # of the warm process: for workers of pytest
FIRST = "TESTS_WARM_FIRST"  # what the process that runs the tests had when it began
HEAD = struct.Struct("!I")
ENDED = struct.Struct("!iddl")  # status, user and system time in s, memory in kB
# Read once, when the interpreter or a library starts: the same in a program, or no copy can be it.
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "MKL_", "OPENBLAS", "KMP_", "TORCH", "LC_", "LANG")
_OF_EACH = (
    "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS", "TORCHELASTIC",
    "PYTHONUTF8",  # streams of a copy are UTF-8
    # Set by libraries, or for each rank
    "TORCH_NCCL", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK",
)  # fmt: skip
_OURS = ("traincheck", "traincheck-collect", "traincheck-infer", "traincheck-check")
# What _execute_child gets for Popen(words, close_fds=False) after the executable.
_PLAIN = (None, False, (), None, None, None, 0, False, *[-1] * 6, True, *[None] * 3, -1, False)
_BIN = Path(sys.executable).parent
_SERVER = Path(__file__).with_name("warm_process.py")

_address = [""]  # of the warm process; empty: start Python
_ended: dict[int, socket.socket] = {}  # pid of a copy -> where its status comes from
_known: set[str] = set()  # descriptors that this process itself got
_status: dict[int, tuple[int, Any]] = {}
_usual: dict[str, Any] = {
    "execute": subprocess.Popen._execute_child,  # type: ignore[attr-defined]
    "poll": subprocess.Popen._internal_poll,  # type: ignore[attr-defined]
    "waitpid": os.waitpid,
    "wait4": os.wait4,
}


class Usage(types.SimpleNamespace):
    """What wait4 tells of a copy: ru_utime and ru_stime in s, ru_maxrss in kB."""


def use(address: str) -> None:
    """Let ``subprocess`` of this process ask the warm process at ``address``; "" ends it."""
    _address[:] = [address]
    _known.update(_inherited())
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    subprocess.Popen._internal_poll = _internal_poll  # type: ignore[attr-defined]
    os.waitpid = _waitpid
    os.wait4 = _wait4


@contextlib.contextmanager
def real_processes() -> Iterator[None]:
    """Start programs as always within this block."""
    before = _address[0]
    _address[:] = [""]
    try:
        yield
    finally:
        _address[:] = [before]


def _execute_child(self: Any, args: Any, executable: Any, *rest: Any) -> None:
    job = _job_of(args, executable, *rest) if _address[0] else None
    if job is None:
        _usual["execute"](self, args, executable, *rest)
        return
    sys.audit("subprocess.Popen", job["args"][0], job["args"], job["cwd"], job["env"])
    p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[8:14]
    given = (p2cread, c2pwrite, errwrite)
    streams = [fd if fd != -1 else own for own, fd in enumerate(given)]
    with contextlib.ExitStack() as held:
        for own, fd in enumerate(streams):  # a closed stream: the copy gets one that is at its end
            try:
                os.fstat(fd)
            except OSError:
                streams[own] = os.open(os.devnull, os.O_RDWR)
                held.callback(os.close, streams[own])
        asked = _connected()
        socket.send_fds(asked, [b"f"], streams)
        said = json.dumps(job).encode("utf-8", "surrogateescape")
        asked.sendall(HEAD.pack(len(said)) + said)
    (self.pid,) = HEAD.unpack(exactly(asked, HEAD.size))
    self._child_created = True
    _ended[self.pid] = asked
    self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def _job_of(args: Any, executable: Any, *rest: Any) -> dict[str, Any] | None:
    """What to ask the warm process for, if it can do what is wanted."""
    preexec_fn, close_fds, pass_fds, cwd, env, _, _, shell, *later = rest
    gid, gids, uid, umask, session, *group = later[7:]
    if any((executable, preexec_fn, pass_fds, shell, gid, gids, uid)):
        return None
    given = [args] if isinstance(args, (str, bytes, os.PathLike)) else args
    environ = os.environ if env is None else env
    environ = {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}
    words = _of_python([os.fsdecode(word) for word in given], environ)
    folder = os.getcwd() if cwd is None else os.fsdecode(cwd)
    if not words or not _is_runnable(words[1:]) or not _fits(environ) or not os.path.isdir(folder):
        return None
    if not close_fds and set(_inherited()) - _known:
        return None
    mask = os.umask(0)
    os.umask(mask)
    return {
        "args": words,
        "env": environ,
        "cwd": os.path.abspath(folder),
        "session": bool(session),
        "group": os.getpgid(0) if not group or group[0] == -1 else group[0],
        "umask": mask if umask < 0 else umask,
    }


def _of_python(words: list[str], environ: Mapping[str, str]) -> list[str]:
    """The words of a command that is this Python or a script installed beside it, else none."""
    found = words[0]
    if os.sep not in found:
        found = shutil.which(found, path=environ.get("PATH")) or ""
    if os.path.dirname(os.path.abspath(found)) != str(_BIN):
        return []
    if os.path.basename(found).startswith("python"):
        return [sys.executable, *words[1:]]
    with contextlib.suppress(OSError, UnicodeDecodeError), open(found, encoding="utf-8") as file:
        if file.readline().strip() == f"#!{sys.executable}":
            return [sys.executable, found, *words[1:]]
    return []


def _is_runnable(words: Sequence[str]) -> bool:
    if words[:1] == ["-u"]:
        words = words[1:]
    if not words:
        return False
    if words[0] in ("-c", "-m"):
        return len(words) > 1
    return not words[0].startswith("-") and os.path.splitext(words[0])[1] in ("", ".py")


def _fits(environ: Mapping[str, str]) -> bool:
    """Whether what is read once is in this environment as the warm process has it."""
    names = {name for name in (*environ, *os.environ) if name.startswith(_READ_AT_START)}
    first = json.loads(os.environ[FIRST])
    return all(environ.get(n) == first.get(n) for n in names if not n.startswith(_OF_EACH))


def _inherited() -> list[str]:
    """The descriptors that a program gets beside its streams, with what they are."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


def _taken(pid: int, options: int) -> bool:
    """Wait for the status of a copy; False if it is still running."""
    if pid in _status:
        return True
    asked = _ended[pid]
    flags = socket.MSG_DONTWAIT if options & os.WNOHANG else 0
    try:
        said = asked.recv(ENDED.size, flags | socket.MSG_WAITALL)
    except BlockingIOError:
        return False
    asked.close()
    del _ended[pid]
    if len(said) < ENDED.size:
        raise ChildProcessError(errno.ECHILD, "the warm process has ended")
    status, user, system, memory = ENDED.unpack(said)
    _status[pid] = status, Usage(ru_utime=user, ru_stime=system, ru_maxrss=memory)
    return True


def _waitpid(pid: int, options: int, /) -> tuple[int, int]:
    if pid not in _ended and pid not in _status:
        return _usual["waitpid"](pid, options)  # type: ignore[no-any-return]
    return (pid, _status.pop(pid)[0]) if _taken(pid, options) else (0, 0)


def _wait4(pid: int, options: int) -> tuple[int, int, Any]:
    if pid not in _ended and pid not in _status:
        return _usual["wait4"](pid, options)  # type: ignore[no-any-return]
    return (pid, *_status.pop(pid)) if _taken(pid, options) else (0, 0, None)


def _internal_poll(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.returncode is None and self.pid in _ended:
        if self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = _waitpid(self.pid, os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode
    return _usual["poll"](self, *args, **kwargs)


def exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise ChildProcessError(errno.ECHILD, "the warm process has ended")
        found += more
    return found


def start(folder: Path) -> Callable[[], None]:
    """Start the warm process of this test run, which loads nothing before it is asked for a copy.

    Returns what ends it and waits for it, so that its time counts as that of the tests.
    """
    os.environ[ADDRESS] = str(folder / "warm")
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    kept = {k: v for k, v in environ.items() if k.startswith(_READ_AT_START)}
    os.environ[FIRST] = environ[FIRST] = json.dumps(kept)
    environ["OMP_NUM_THREADS"] = "1"  # numpy starts no threads, which no copy would have
    argv = [sys.executable, str(_SERVER), os.environ[ADDRESS]]
    server = subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE)

    def end() -> None:
        server.communicate()
        del os.environ[ADDRESS], os.environ[FIRST]

    return end


def commands() -> Path:
    """A folder with the commands of this environment for shells: each becomes a copy."""
    folder = Path(os.environ[ADDRESS]).parent / "commands"
    if not folder.exists():
        made = folder.with_name(f"commands-{os.getpid()}")
        made.mkdir()
        lines = (
            f"#!{sys.executable} -IS",
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})",
            "from tests.warm import stand_in; stand_in()",
        )
        for name in ("python", "python3", "torchrun", *_OURS):
            (made / name).write_text("\n".join(lines))
            (made / name).chmod(0o755)
        with contextlib.suppress(OSError):  # another worker was faster
            made.rename(folder)
    return folder


def stand_in() -> NoReturn:
    """Be a command in a shell: pass signals on to a copy, and end as it ends."""
    words = [str(_BIN / Path(sys.argv[0]).name), *sys.argv[1:]]
    if ADDRESS in os.environ and _job_of(words, None, *_PLAIN) is not None:
        use(os.environ[ADDRESS])
        process = subprocess.Popen(words, close_fds=False)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, _: process.send_signal(number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the group, to which the copy belongs
        status = process.wait()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status)
    os.execv(words[0], words)


def _connected() -> socket.socket:
    asked = socket.socket(socket.AF_UNIX)
    while not os.path.exists(_address[0]):  # just started
        time.sleep(0.01)
    asked.connect(_address[0])
    return asked
