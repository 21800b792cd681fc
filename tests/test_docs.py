"""The documents say what the program does: pages are fresh, examples run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from traincheck.schema import events

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FORBIDDEN_WORDS = ("anomaly", "anomalies")
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_FILE_NAME = re.compile(r"# (\S+\.py)\n")


class Block(NamedTuple):
    language: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(match[1], match[2]) for match in _FENCE.finditer(text)]


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("tests/*.md")])


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_fresh(generator: ModuleType) -> None:
    stale = [
        path.name
        for path, text in generator.pages().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert not stale, "run `make docs`"


def test_a_stale_section_is_replaced(generator: ModuleType) -> None:
    text = "a\n<!-- begin generated: x -->\nold\n<!-- end generated: x -->\nb\n"
    assert "old" not in generator.replaced(text, "x", "new")
    assert generator.replaced(text, "x", "new").startswith("a\n")
    assert generator.replaced(text, "x", "new").endswith("-->\nb\n")


def test_every_field_of_every_event_is_explained(generator: ModuleType) -> None:
    for event_type in events.EVENT_TYPES:
        own = set(event_type._fields[len(generator.HEADER) :])
        assert own <= set(generator.described(event_type.__doc__)), event_type.__name__


def test_every_command_has_help(generator: ModuleType) -> None:
    missing = []
    for name, command in generator.commands():
        if not command.help:
            missing.append(name)
        missing += [
            f"{name} {option.opts[-1]}"
            for option in command.params
            if option.param_type_name == "option" and not option.help
        ]
    assert not missing


@pytest.mark.parametrize("page", names(pages()))
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = _LINK.findall(path.read_text(encoding="utf-8"))
    broken = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert not broken


@pytest.mark.parametrize("page", names(pages()))
def test_words_are_those_of_the_glossary(page: str) -> None:
    words = set(re.findall(r"[a-z]+", (ROOT / page).read_text(encoding="utf-8").lower()))
    assert not words & set(FORBIDDEN_WORDS)


def test_every_word_of_the_event_schema_is_in_the_format_page() -> None:
    text = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    assert all(f"### {kind}\n" in text for kind in events.KINDS)


def steps() -> Iterator[Block]:
    """The blocks of the README that act: files to write, commands to run, and their output."""
    yield from (b for b in blocks(README.read_text(encoding="utf-8")) if b.language != "sh")


def environment() -> dict[str, str]:
    found = dict(os.environ)
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found['PATH']}"
    found.update(COLUMNS="100", NO_COLOR="1", OMP_NUM_THREADS="1")
    return found


def test_the_readme_example_runs_and_says_what_it_shows(tmp_path: Path) -> None:
    """`python` blocks that name a file are written, `bash` blocks run, `text` blocks compared."""
    output = ""
    ran = 0
    for block in steps():
        if block.language == "python":
            match = _FILE_NAME.match(block.text)
            assert match, "a python block of the README begins with `# name.py`"
            (tmp_path / match[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "bash":
            output = run(block.text, tmp_path)
            ran += 1
        elif block.language == "console":
            assert telling(block.text) <= telling(output), output
    assert ran > 1


def run(commands: str, folder: Path) -> str:
    """Run a block as typed; all that a person would see."""
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def telling(text: str) -> set[str]:
    """Lines to compare: without layout, and without numbers that measure this one run."""
    lines = (re.sub(r"[\d.,]+", "#", line) for line in text.splitlines())
    return {" ".join(re.findall(r"[\w#./:'-]+", line)) for line in lines} - {""}
