"""Keys of a terminal, one at a time and without an echo, and the choice that each makes."""

from __future__ import annotations

import os
import select
import termios
import time
import tty
from collections.abc import Sequence
from types import TracebackType

from traincheck.live.screen import FINDINGS, HELP, MODEL_ORDER, OVERVIEW, Choice

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


_PAGES = {"f": FINDINGS, "?": HELP, "l": OVERVIEW}
_END = 1 << 30


def is_quit(key: str, choice: Choice) -> bool:
    """Whether a key ends the view."""
    return key == HANGUP or (key == "q" and not choice.is_typing)


def obey(key: str, choice: Choice, columns: Sequence[str], height: int) -> None:
    """Change the choice as a key asks for.

    Args:
        key: as of `Keyboard.wait`.
        choice: is changed.
        columns: by which layers can be sorted.
        height: lines of the terminal.
    """
    if choice.is_typing:
        choice.offset = 0
        if key == "enter":
            choice.is_typing = False
        elif key == "escape":
            choice.is_typing, choice.only = False, ""
        elif key == "backspace":
            choice.only = choice.only[:-1]
        elif len(key) == 1:
            choice.only += key
    elif key in _PAGES:
        page = _PAGES[key]
        choice.page = OVERVIEW if page == choice.page else page
        choice.offset = 0
    elif key in ("s", "S") or key.isdecimal():
        _sort(key, choice, columns)
    elif key == "r":
        choice.is_reversed, choice.offset = not choice.is_reversed, 0
    elif key == "/":
        choice.page, choice.is_typing, choice.only, choice.offset = OVERVIEW, True, "", 0
    elif key == "escape":
        choice.page, choice.only, choice.offset = OVERVIEW, "", 0
    elif key == " ":
        choice.is_held = not choice.is_held
    else:
        moves = {"up": -1, "down": 1, "pageup": -height // 2, "pagedown": height // 2}
        moves |= {"home": -_END, "end": _END}
        choice.offset = max(0, choice.offset + moves.get(key, 0))


def _sort(key: str, choice: Choice, columns: Sequence[str]) -> None:
    orders = [MODEL_ORDER, *columns]
    present = orders.index(choice.sort) if choice.sort in orders else 0
    move = 1 if key == "s" else -1
    chosen = int(key) if key.isdecimal() else (present + move) % len(orders)
    if chosen < len(orders):
        choice.sort, choice.offset, choice.page = orders[chosen], 0, OVERVIEW
