"""A terminal that programs run in: a pseudo-terminal whose screen can be read, and typed to."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pyte

_ENVIRONMENT = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
_DROPPED = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI", "TTY_COMPATIBLE")


class Terminal:
    """Runs `traincheck` in a terminal of some size.

    Args:
        arguments: of traincheck.
        columns, lines: the size.
        cwd: working directory.
        program: arguments of Python in place of those that run traincheck.
    """

    def __init__(
        self,
        arguments: list[str],
        columns: int,
        lines: int,
        *,
        cwd: Path | None = None,
        program: list[str] | None = None,
    ) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.received = b""
        self._master, slave = pty.openpty()
        self.resize(columns, lines)
        kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        self.process = subprocess.Popen(
            [sys.executable, *(program or ["-m", "traincheck", *arguments])],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**kept, **_ENVIRONMENT},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        self._screen.resize(lines, columns)

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as shells need it."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, is_so: Callable[[Terminal], bool], seconds: float = 60.0) -> None:
        """Read until something is on the screen; fails with the screen if it never is."""
        end = time.monotonic() + seconds
        while not is_so(self):
            if not self.read(0.05) and time.monotonic() > end:
                raise AssertionError(f"not after {seconds} s:\n{self.text}")

    def until_shown(self, text: str, seconds: float = 60.0) -> None:
        self.until(lambda terminal: text in terminal.text, seconds)

    def end(self, seconds: float = 60.0) -> int:
        """The exit status, after all output was read."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        while self.read(0.05):
            pass
        return self.process.wait(1)

    def read(self, seconds: float) -> bool:
        """Take what is sent within some seconds; whether there was anything."""
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            found = os.read(self._master, 1 << 16)
        except OSError:  # the program has closed it
            return False
        self.received += found
        self._stream.feed(found)
        return bool(found)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
