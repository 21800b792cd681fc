"""Options from a TOML file: what is known is taken, what is not is refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from traincheck.config import CollectConfig, read_collect
from traincheck.errors import UsageError


@pytest.fixture
def config(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "traincheck.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_every_option_can_be_given(config) -> None:
    text = """
    [collect]
    output = "traces/good"
    invariants = ["a.json", "b.json"]
    rules = true
    every = 10
    warmup = 3
    level = "deep"
    instrument = ["mypkg"]
    """
    assert read_collect(config(text)) == CollectConfig(
        output="traces/good",
        invariants=("a.json", "b.json"),
        rules=True,
        every=10,
        warmup=3,
        level="deep",
        instrument=("mypkg",),
    )


@pytest.mark.parametrize("text", ["", "[collect]\n"])
def test_nothing_given_is_nothing_set(config, text) -> None:
    assert read_collect(config(text)) == CollectConfig()


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("[collect]\nevry = 2", "evry", "'every'"),
        ("[collect]\nzzz = 2", "zzz", "known are"),
        ("[colect]\nevery = 2", r"\[colect\]", "'collect'"),
        ("every = 2", "every", "collect"),
        ("collect = 2", "not a table", r"\[collect\]"),
        ('[collect]\nevery = "2"', "every", "whole number"),
        ("[collect]\nevery = true", "every", "whole number"),
        ("[collect]\nrules = 1", "rules", "true or false"),
        ('[collect]\ninvariants = "a.json"', "invariants", "list of strings"),
        ("[collect]\ninstrument = [1]", "instrument", "list of strings"),
        ("[collect", "not TOML", "correct"),
    ],
)
def test_what_is_wrong_is_named_with_a_fix(config, text, what, fix) -> None:
    path = config(text)
    with pytest.raises(UsageError, match=what) as caught:
        read_collect(path)
    assert str(path) in caught.value.message
    assert re.search(fix, str(caught.value.fix))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not TOML"):
        read_collect(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        read_collect(tmp_path / "nowhere.toml")
