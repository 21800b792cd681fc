"""What a terminal or a log of CI would obey never comes from a name, through any receiver."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import LINEAR, TraceBuilder
from traincheck.api import check
from traincheck.check.suppression.policy import write_baseline
from traincheck.cli import main as entry
from traincheck.infer.engine import Run, infer
from traincheck.infer.files import save
from traincheck.infer.select import Limits
from traincheck.schema.words import (
    all_printable,
    printable,
    printable_json,
    printable_lines,
)
from traincheck.store.manifest import Manifest
from traincheck.store.reader import TraceReader
from traincheck.store.writer import TraceWriter

NAMES = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[H",
    "\x1b]8;;http://x\x1b\\link",
    "bell\x07",
    "back\x08\x08\x08",
    "del\x7f",
    "null\x00",
    "\x9b31m",
    "\x85next",
    "\x90dcs\x9c",
    "\x9d0;t\x9c",
    "tab\ttab",
    "new\nline",
    "carriage\rreturn",
    "vertical\x0btab\x0cfeed",
    "::error::pwned",
    "::error file=a.py,line=1::pwned",
    " ::warning::pwned",
    "a ::add-mask::x",
    "x\n::error::pwned",
    "x\r\n::set-output name=a::b",
    "x\u2028::error::pwned",
    "##[error]pwned",
    "a##[group]b",
    "##vso[task.setvariable]x",
    "\u202egnp.exe",
    "\u202dforced",
    "\u2066isolate\u2069",
    "\u061cmark",
    "\u200fmark\u200e",
    "zero\u200bwidth",
    "join\u200d\u200cer",
    "\ufeffbom",
    "soft\u00adhyphen",
    "line\u2028sep",
    "para\u2029sep",
    "word\u2060joiner",
    "tag\U000e0041\U000e007f",
    "fill\u3164er",
    "[bold]markup[/bold]",
    "]]>&<x>",
)
HARMLESS = ("Net.fc1.weight", "übung-模型.weight", "std::vector", "a:b", "C:\\x", "50 %", "# x")
OBEYED = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\U000e0000-\U000e0fff]"
)
COMMAND = re.compile(r"^\s*::|##\w*\[", re.MULTILINE)
OURS = re.compile(r"^::(error|warning|notice) (file=|title=)[^\n]*$", re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_is_made_printable(name: str) -> None:
    shown = printable(name)
    assert not OBEYED.search(shown)
    assert "\n" not in shown
    assert not COMMAND.search(shown)
    assert not COMMAND.search(f"x\n{shown}")
    assert printable(shown) == shown
    assert json.loads(printable_json(json.dumps(name, ensure_ascii=False))) == name
    assert not OBEYED.search(printable_json(json.dumps(name, ensure_ascii=False)))


@pytest.mark.parametrize("name", HARMLESS)
def test_a_usual_name_is_shown_as_it_is(name: str) -> None:
    assert printable(name) == printable_lines(name) == name
    assert printable_json(f'"{name}"') == f'"{name}"'


def test_lines_stay_lines() -> None:
    assert printable_lines("a\n  b\x1b\n") == "a\n  b\\x1b\n"
    assert printable_json('{\n  "é": "\u202e"\n}') == '{\n  "é": "\\u202e"\n}'


def test_what_is_not_text_is_left_as_it_is() -> None:
    assert all_printable((1, None, "a\n", ["\x07"], {"k\n": "v\n"})) == (
        (1, None, "a\\n", ["\\x07"], {"k\n": "v\\n"})
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which all names are hostile, and what is made of it."""
    folder = tmp_path_factory.mktemp("hostile")
    parameters = {f"{name}.weight": LINEAR for name in NAMES}
    note = "".join(NAMES)
    for run, omitted in (("good", set()), ("bad", {"zero_grad"})):
        builder = TraceBuilder().process(argv0=note, instruments={note: note})
        builder.model("Net\x1b::error::x", parameters).optimizer().steps(4, omit=omitted)
        builder.warning(note, note, f"{note}.py:3").seed(note).mark(note, **{"k": note})
        builder.load("Net", path=note, missing=list(NAMES), where=f"{note}:1")
        builder.steps(2, omit=omitted).call(f"torch.{note}", where=f"{note}:2")
        manifest = Manifest(
            run_id=note, command=(note, f"{note}.py"), cwd=note, notes=(note,), started=note,
            ended="2026-01-01T00:00:00+00:00", signal=note, created_with={"hostname": note},
        )  # fmt: skip
        with TraceWriter(folder / run, manifest) as writer:
            for event in builder.build():
                writer.emit(event)
    learned = infer([Run(name=note, source=TraceReader(folder / "good"))])
    save(learned, folder / "invariant.json", Limits())
    write_baseline(folder / "baseline.json", check(folder / "bad").findings[:1])
    text = (folder / "invariant.json").read_text()
    (folder / "damaged.json").write_text(text.replace('"relation"', '"\u202e\\u001b"', 1))
    return folder


CHECK = ("check", "-t", "bad", "-i", "invariant.json", "-v", "--show-info", "--show-suppressed")
COMMANDS = (
    CHECK,
    *((*CHECK, "--format", form) for form in ("json", "junit", "sarif", "github", "markdown")),
    (*CHECK, "--baseline", "baseline.json"),
    (*CHECK, "--follow"),
    ("check", "-t", "bad", "-i", "damaged.json"),
    ("trace", "show", "bad"),
    ("trace", "show", "bad", "--format", "json"),
    ("trace", "show", "bad", "--events"),
    ("trace", "show", "bad", "--events", "--format", "json"),
    ("trace", "export", "bad", "-o", "out"),
    ("infer", "-t", "good", "-o", "again.json", "--why-not", ""),
    ("invariants", "list", "invariant.json"),
    ("invariants", "list", "invariant.json", "--format", "json"),
    ("invariants", "diff", "invariant.json", "invariant.json"),
    ("invariants", "validate", "invariant.json", "-t", "bad"),
    ("invariants", "validate", "invariant.json", "-t", "bad", "--format", "json"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_writes_what_a_terminal_obeys(
    command: tuple[str, ...], folder: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert entry.run(entry.load(command[0]), "traincheck", command[1:]) in (0, 1, 2)
    out, err = capsys.readouterr()
    assert out or err
    for text in (out, err):
        assert not list(obeyed(OURS.sub("", text) if "github" in command else text))


def obeyed(text: str) -> Iterator[str]:
    """Pieces of what was written that a terminal or a log would obey."""
    for pattern in (OBEYED, COMMAND):
        for found in pattern.finditer(text):
            yield text[max(0, found.start() - 40) : found.end() + 40]


def test_such_pieces_are_seen() -> None:
    assert all(list(obeyed(text)) for text in ("a\x1b", "a\n  ::error::b", "##[error]", "\u202e"))
    assert not list(obeyed("a::b\nc"))
