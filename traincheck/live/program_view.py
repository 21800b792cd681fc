"""The terminal view over a program that traincheck runs.

The view has the terminal, so the program writes to a pseudo-terminal instead, as wide as the real
one. Its last lines are in the view. All that it wrote follows on the real terminal when the view
ends, and from then on at once. A stream that is no terminal is left to the program.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from traincheck.collect.launch.launcher import Streams
from traincheck.errors import UsageError
from traincheck.live.keyboard import Keyboard
from traincheck.live.viewer import Viewer

_PIECE = 1 << 16
_KEPT = 1 << 14  # bytes from which the last lines are taken
_PATIENCE_S = 2.0
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


class ProgramOutput:
    """The output of a program on its pseudo-terminal: kept until it is released, then passed on.

    Args:
        descriptor: of the real terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._master, self.slave = pty.openpty()
        kept_as_written = termios.tcgetattr(self.slave)
        kept_as_written[1] &= ~termios.OPOST  # the real terminal ends lines as it does
        termios.tcsetattr(self.slave, termios.TCSANOW, kept_as_written)
        with contextlib.suppress(OSError):  # no size is known
            size = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self.slave, termios.TIOCSWINSZ, size)
        self._lock = threading.Lock()
        self._kept = tempfile.TemporaryFile()  # noqa: SIM115  # closed when it is released
        self._is_released = False
        self._last = b""
        self._thread = threading.Thread(target=self._read, daemon=True, name="traincheck-output")

    def start(self) -> None:
        """The program has the pseudo-terminal."""
        os.close(self.slave)
        self._thread.start()

    def lines(self, most: int) -> Sequence[str]:
        """The last lines that the program wrote, without colours."""
        return last_lines(self._last, most)

    def release(self) -> None:
        """Write what was kept to the real terminal; what comes later goes there at once."""
        with self._lock:
            self._kept.seek(0)
            while piece := self._kept.read(_PIECE):
                _write_all(self._descriptor, piece)
            self._kept.close()
            self._is_released = True

    def finish(self) -> None:
        """The program has ended: take what it wrote last."""
        self._thread.join(_PATIENCE_S)  # longer only where it left processes that may write

    def _read(self) -> None:
        while piece := _read(self._master):
            self._last = (self._last + piece)[-_KEPT:]
            with self._lock:
                if self._is_released or not self._keep(piece):
                    _write_all(self._descriptor, piece)

    def _keep(self, piece: bytes) -> bool:
        try:
            self._kept.write(piece)
        except OSError:  # the disk is full: better a disturbed view than a program that waits
            return False
        return True


def last_lines(written: bytes, most: int) -> list[str]:
    """The last lines of what a program wrote, as a terminal shows them after each return."""
    found = []
    for line in _SEQUENCE.sub(b"", written).replace(b"\r\n", b"\n").split(b"\n"):
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        if shown.strip():
            found.append(shown.decode(errors="replace"))
    return found[-most:] if most > 0 else []


class LiveView:
    """Shows a run while `launch` waits for its end.

    Args:
        directory: of the run.
        on_end: called when the view has ended, and the terminal is free.

    Attributes:
        failure: the error that ended the view early; None if there was none.

    Raises:
        UsageError: stderr or stdin is no terminal.
    """

    def __init__(self, directory: Path, on_end: Callable[[], None]) -> None:
        if not (sys.stderr.isatty() and sys.stdin is not None and sys.stdin.isatty()):
            raise UsageError(
                "--live needs a terminal",
                fix="leave it out, and watch the run from a terminal: traincheck top DIR",
            )
        self._directory = directory
        self._on_end = on_end
        self._ended = threading.Event()
        self._output = ProgramOutput(sys.stderr.fileno())
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._show, daemon=True, name="traincheck-view")

    @property
    def streams(self) -> Streams:
        """The streams of the program in place of the terminal."""
        out = self._output.slave
        return Streams(
            stdin=subprocess.DEVNULL,  # keys go to the view
            stdout=out if sys.stdout.isatty() else None,
            stderr=out,
        )

    def start(self) -> None:
        """The program runs."""
        self._output.start()
        self._thread.start()

    def finish(self) -> None:
        """The program has ended, or was not started."""
        self._ended.set()
        if self._thread.ident is None:
            return
        self._output.finish()
        self._thread.join()

    def _show(self) -> None:
        console = Console(stderr=True, highlight=False, force_jupyter=False)
        try:
            keyboard = Keyboard(sys.stdin.fileno())
            Viewer(
                self._directory,
                console,
                keyboard=keyboard,
                stop=self._ended.is_set,
                output=self._output.lines,
            ).show()
        except Exception as error:  # the program runs on whatever we got wrong
            self.failure = error
        finally:
            self._output.release()
            self._on_end()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _PIECE)
    except OSError:  # no process has the other end any more
        return b""


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    with contextlib.suppress(OSError):  # the terminal was closed
        while view:
            view = view[os.write(descriptor, view) :]
