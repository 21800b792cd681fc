"""Keys: what a terminal sends, and what it changes."""

from __future__ import annotations

import pytest

from traincheck.live.keyboard import HANGUP, is_quit, keys, obey
from traincheck.live.screen import FINDINGS, HELP, MODEL_ORDER, OVERVIEW, Choice

COLUMNS = ["gradient norm", "parameter norm"]


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (b"q", ["q"]),
        (b"sr", ["s", "r"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOA", ["up"]),
        (b"\x1b[5~\x1b[6~", ["pageup", "pagedown"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[1;5Cq", ["q"]),
        (b"\x1b[", []),
        (b"\r\x7f", ["enter", "backspace"]),
        ("é字".encode(), ["é", "字"]),
        (b"\x01\xff", []),
    ],
)
def test_keys_have_names(sent: bytes, found: list[str]) -> None:
    assert keys(sent) == found


def after(pressed: str, choice: Choice | None = None) -> Choice:
    choice = choice or Choice()
    for key in keys(pressed.encode()):
        obey(key, choice, COLUMNS, 24)
    return choice


def test_s_goes_through_the_columns() -> None:
    orders = [after("s" * n).sort for n in range(4)]
    assert orders == [MODEL_ORDER, *COLUMNS, MODEL_ORDER]
    assert after("S").sort == COLUMNS[-1]


def test_a_number_chooses_a_column() -> None:
    assert after("2").sort == "parameter norm"
    assert after("20").sort == MODEL_ORDER
    assert after("29").sort == "parameter norm"  # there is no ninth


def test_pages_open_and_close() -> None:
    assert [after(k).page for k in ("f", "?", "ff", "fl", "f\x1b")] == [
        FINDINGS,
        HELP,
        OVERVIEW,
        OVERVIEW,
        OVERVIEW,
    ]


def test_a_filter_takes_all_letters() -> None:
    choice = after("/fc1q\x7f")
    assert (choice.only, choice.is_typing) == ("fc1", True)
    assert not is_quit("q", choice)
    after("\r", choice)
    assert (choice.only, choice.is_typing) == ("fc1", False)
    assert is_quit("q", choice)
    assert after("\x1b", choice).only == ""


def test_scrolling_stays_at_the_top() -> None:
    assert after("\x1b[A").offset == 0
    assert after("\x1b[B\x1b[B\x1b[A").offset == 1
    assert after("\x1b[6~").offset == 12
    assert after("\x1b[6~r").offset == 0


def test_space_holds() -> None:
    assert after(" ").is_held
    assert not after("  ").is_held


def test_a_closed_terminal_ends_the_view() -> None:
    assert is_quit(HANGUP, Choice(is_typing=True))
