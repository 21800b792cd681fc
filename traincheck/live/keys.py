"""The keys of the terminal view, and the choice that each of them makes."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.live.keyboard import HANGUP
from traincheck.live.screen import FINDINGS, HELP, MODEL_ORDER, OVERVIEW, Choice

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
        _type(key, choice)
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
        _scroll(key, choice, height)


def _type(key: str, choice: Choice) -> None:
    choice.offset = 0
    if key == "enter":
        choice.is_typing = False
    elif key == "escape":
        choice.is_typing, choice.only = False, ""
    elif key == "backspace":
        choice.only = choice.only[:-1]
    elif len(key) == 1:
        choice.only += key


def _sort(key: str, choice: Choice, columns: Sequence[str]) -> None:
    orders = [MODEL_ORDER, *columns]
    present = orders.index(choice.sort) if choice.sort in orders else 0
    move = 1 if key == "s" else -1
    chosen = int(key) if key.isdecimal() else (present + move) % len(orders)
    if chosen < len(orders):
        choice.sort, choice.offset, choice.page = orders[chosen], 0, OVERVIEW


def _scroll(key: str, choice: Choice, height: int) -> None:
    moves = {"up": -1, "down": 1, "pageup": -height // 2, "pagedown": height // 2}
    moves |= {"home": -_END, "end": _END}
    choice.offset = max(0, choice.offset + moves.get(key, 0))
