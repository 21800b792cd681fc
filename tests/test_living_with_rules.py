"""Every snippet of docs/living-with-rules.md does what the page says."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import healthy_run
from traincheck.api import chosen_rules
from traincheck.check.suppression.source_files import comments_of
from traincheck.cli import main as entry
from traincheck.config import load_config
from traincheck.store.writer import TraceWriter

PAGE = (Path(__file__).parents[1] / "docs" / "living-with-rules.md").read_text(encoding="utf-8")


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    with TraceWriter(tmp_path / "traces" / "new") as writer:
        for event in healthy_run(3):
            writer.emit(event)
    monkeypatch.chdir(tmp_path)

    def typed(line: str) -> int:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        return entry.main()

    return typed


def test_the_page_has_snippets() -> None:
    assert len(snippets("bash")) >= 4
    assert len(snippets("toml")) == len(snippets("python")) == 1


def test_commands_run(run: Callable[[str], int]) -> None:
    lines = [line for snippet in snippets("bash") for line in snippet.splitlines()]
    assert {line: run(line) for line in lines} == dict.fromkeys(lines, 0)


def test_the_configuration_is_one(tmp_path: Path) -> None:
    (text,) = snippets("toml")
    (tmp_path / "traincheck.toml").write_text(text)
    config = load_config(tmp_path / "traincheck.toml")
    assert config.suppress
    assert config.rules
    assert chosen_rules(config)
    # In pyproject.toml the same tables have longer names.
    longer = re.sub(r"^(\[+)", r"\1tool.traincheck.", text, flags=re.M)
    (tmp_path / "pyproject.toml").write_text(f"[tool.traincheck]\n{longer}")
    other = load_config(tmp_path / "pyproject.toml")
    assert (other.ignore, other.rules, other.collect) == (
        config.ignore,
        config.rules,
        config.collect,
    )


def test_the_comment_is_one() -> None:
    (text,) = snippets("python")
    assert comments_of(text)[1].codes == ("TC201",)
    assert comments_of(text)[1].reason.startswith("gradients are summed")
