"""Keys of a terminal, one at a time and without an echo."""

from __future__ import annotations

import os
import select
import termios
import time
import tty
from types import TracebackType

_NAMES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
}
_MOST_BYTES = 1024
HANGUP = "hangup"  # the terminal was closed


class Keyboard:
    """Reads keys while it is entered; restores the terminal when it is left.

    Args:
        descriptor: of a terminal; None for no keys.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._before: list[int | list[bytes | int]] | None = None

    def __enter__(self) -> Keyboard:
        if self._descriptor is not None:
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor is not None and self._before is not None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> list[str]:
        """The keys of the next moment: returns when there are some, or the time is over."""
        if self._descriptor is None:
            time.sleep(seconds)
            return []
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return []
        try:
            found = os.read(self._descriptor, _MOST_BYTES)
        except OSError:
            return [HANGUP]
        return keys(found) if found else [HANGUP]


def keys(found: bytes) -> list[str]:
    """Names of keys in what a terminal sent: "up", or the letter; unknown sequences are dropped."""
    made = []
    while found:
        name, length = _first(found)
        made += [name] if name else []
        found = found[length:]
    return made


def _first(found: bytes) -> tuple[str, int]:
    for length in (4, 3, 1):
        name = _NAMES.get(found[:length])
        if name is not None and (length > 1 or found[:2] not in (b"\x1b[", b"\x1bO")):
            return name, length
    if found[:1] == b"\x1b":
        end = next((i for i, byte in enumerate(found[2:], 2) if 0x40 <= byte <= 0x7E), 1)  # noqa: PLR2004  # final bytes of a sequence
        return "", end + 1
    size = 1 + sum(found[:1] >= low for low in (b"\xc0", b"\xe0", b"\xf0"))  # of UTF-8
    text = found[:size].decode(errors="ignore")
    return (text if text.isprintable() else ""), size
