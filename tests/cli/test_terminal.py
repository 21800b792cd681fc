"""Lines beside those of a program: where they begin, how they are broken, and the sign of life."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import MLP, TraceBuilder, healthy_run
from traincheck.api import make_engine
from traincheck.cli import _terminal
from traincheck.cli._os_errors import line_start
from traincheck.cli._terminal import Heartbeat, write_finding, write_message
from traincheck.schema.findings import Finding

WIDTH = 40
BROKEN = TraceBuilder().process().model("Net", MLP).optimizer().steps(4, omit={"zero_grad"}).build()


class Terminal(io.StringIO):
    """A terminal: what is written to it, and what it shows."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 99

    @property
    def screen(self) -> list[str]:
        """The lines that are shown, the cursor moving as in xterm."""
        lines, column = [""], 0
        for letter in re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue()):
            if letter == "\r":
                column = 0
            elif letter == "\n":
                lines, column = [*lines, ""], 0
            else:
                if column == WIDTH:
                    lines, column = [*lines, ""], 0
                lines[-1] = f"{lines[-1][:column]:<{column}}{letter}{lines[-1][column + 1 :]}"
                column += 1
        return [line.rstrip() for line in lines]


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    made = Terminal()
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((WIDTH, 24)))
    listen(monkeypatch, made)
    return made


def listen(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    # pytest puts its own stderr back after fixtures.
    monkeypatch.setattr(_terminal, "sys", SimpleNamespace(stderr=stream))


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ("", []),
        ("done\n", ["done"]),
        ("Training: 35% |###", ["Training: 35% |###"]),
        ("\rTraining: 35% |###", ["Training: 35% |###"]),
        ("x" * (WIDTH - 1), ["x" * (WIDTH - 1)]),
        ("x" * WIDTH, ["x" * WIDTH]),
        ("x" * (WIDTH + 5), ["x" * WIDTH, "xxxxx"]),
        ("bar\r", []),
    ],
)
def test_a_line_begins_where_no_other_is(terminal: Terminal, before: str, shown: list[str]) -> None:
    terminal.write(before)
    write_message("stopping")
    terminal.write("\rTraining: 40% |####")
    assert terminal.screen == [*shown, "traincheck: stopping", "Training: 40% |####"]


def test_words_stay_whole(terminal: Terminal) -> None:
    text = (
        "No optimizer holds Net.head.bias, Net.head.weight and_a_name_that_is_longer_than_the_line"
    )
    write_message(text)
    lines = terminal.screen
    assert " ".join(lines).split() == ["traincheck:", *text.split()]
    assert all(len(line) <= WIDTH for line in lines[:-2])


@pytest.mark.parametrize(("name", "is_coloured"), [("NO_COLOR", False), ("FORCE_COLOR", True)])
def test_colour(terminal: Terminal, monkeypatch, name: str, is_coloured: bool) -> None:
    stream = terminal if name == "NO_COLOR" else io.StringIO()
    listen(monkeypatch, stream)
    monkeypatch.setenv(name, "1")
    write_finding(finding())
    assert ("\x1b[1;31m" in stream.getvalue()) == is_coloured
    assert "TC201 error" in stream.getvalue()


def test_a_terminal_has_colour_and_another_stream_has_none(terminal: Terminal, monkeypatch) -> None:
    write_finding(finding())
    assert "\x1b[1;31mTC201 error" in terminal.getvalue()
    plain = io.StringIO()
    listen(monkeypatch, plain)
    write_finding(finding())
    assert "\x1b" not in plain.getvalue()


def finding() -> Finding:
    engine = make_engine()
    for event in BROKEN:
        engine.observe(event)
    return engine.finish().findings[0]


def test_a_log_gets_one_line(monkeypatch) -> None:
    log = io.StringIO()
    listen(monkeypatch, log)
    write_message("word " * 100)
    assert log.getvalue().count("\n") == 1


def test_a_terminal_without_a_width_gets_a_line_break(terminal: Terminal, monkeypatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((0, 0)))
    assert line_start(terminal) == "\n"


def test_a_line_carries_the_place(terminal: Terminal) -> None:
    events = TraceBuilder().call("torch.optim.Optimizer.step", where="/me/train.py:40").build()
    write_finding(replace(finding(), evidence=tuple(events)))
    assert "(train.py:40)" in terminal.getvalue()


def test_a_line_without_a_place_has_no_brackets(terminal: Terminal) -> None:
    write_finding(replace(finding(), evidence=()))
    assert "(" not in terminal.getvalue()


def test_advice_can_wait(terminal: Terminal) -> None:
    write_finding(replace(finding(), severity="info"))
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(("before", "start"), [("", ""), ("done\n", ""), ("35%", "\n")])
def test_a_file_gets_a_line_break_where_it_needs_one(tmp_path: Path, before, start) -> None:
    path = tmp_path / "log"
    path.write_text(before)
    with path.open("a") as stream:
        assert line_start(stream) == start


def test_a_pipe_gets_a_line_break_while_a_program_writes() -> None:
    receiver, sender = os.pipe()
    with os.fdopen(receiver), os.fdopen(sender, "w") as stream:
        assert line_start(stream, is_written=True) == "\n"
        assert line_start(stream) == ""


def test_a_sign_of_life_comes_rarely_and_only_on_a_terminal(terminal: Terminal) -> None:
    now, engine = [0.0], make_engine()
    heartbeat = Heartbeat(engine, clock=lambda: now[0])
    heartbeat.tick()
    assert terminal.getvalue() == ""
    now[0] = 10
    heartbeat.tick()
    for event in healthy_run(40):
        engine.observe(event)
    now[0] = 29
    heartbeat.tick()
    assert terminal.screen[0].startswith("traincheck: recording; no training step")
    assert terminal.getvalue().count("traincheck: ") == 1
    now[0] = 30
    heartbeat.tick()
    shown = " ".join(" ".join(terminal.screen).split())
    assert "checked up to step 39, 2 steps/s, " in shown
    assert re.search(r", \d\d of \d\d\d checks triggered, no findings$", shown)
    written = terminal.getvalue()
    now[0] = 69
    heartbeat.tick()
    assert terminal.getvalue() == written


def test_no_sign_of_life_in_a_log(monkeypatch) -> None:
    log = io.StringIO()
    listen(monkeypatch, log)
    now = [0.0]
    heartbeat = Heartbeat(make_engine(), clock=lambda: now[0])
    now[0] = 1e6
    heartbeat.tick()
    assert log.getvalue() == ""


def test_intervals_grow_to_a_limit(terminal: Terminal) -> None:
    now, beats, engine = [0.0], 0, make_engine()
    heartbeat = Heartbeat(engine, clock=lambda: now[0])
    for _ in range(24 * 360):  # a day, in steps of ten seconds
        now[0] += 10
        before = len(terminal.getvalue())
        heartbeat.tick()
        beats += len(terminal.getvalue()) > before
    assert beats <= 60
    assert _terminal._LONGEST_BEAT_S >= 600
