"""traincheck rules: the list, and the explanation of one."""

from __future__ import annotations

import json
import sys

import pytest

from tests.checking import BY_CODE
from tests.rules.test_options import Loud
from traincheck.cli import main as entry
from traincheck.rules import registry
from traincheck.rules.docs import THEMES, docs_of
from traincheck.rules.table import RULES


@pytest.fixture
def rules(monkeypatch):
    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["traincheck", "rules", *words])
        return entry.main()

    return run


def test_lists_every_rule_in_a_line(rules, capsys) -> None:
    assert rules() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [rule.info.code for rule in RULES]
    assert any("missing-zero-grad: gradients are not cleared" in line for line in lines)


def test_groups_them_by_theme_on_a_terminal(rules, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert rules() == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    places = [lines.index(theme) for theme in THEMES.values() if theme in lines]
    assert len(places) >= 2
    assert places == sorted(places)
    first = lines.index(THEMES["TC1"])
    second = min(place for place in places if place > first)
    assert [line[:3] for line in lines[first + 1 : second] if line.startswith("TC")] == (
        ["TC1"] * sum(rule.info.code.startswith("TC1") for rule in RULES)
    )


def test_lists_them_as_json(rules, capsys) -> None:
    assert rules("--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in found] == [rule.info.code for rule in RULES]
    one = next(one for one in found if one["code"] == "TC201")
    assert one["name"] == "missing-zero-grad"
    assert one["theme"] == "Step window"
    assert one["options"] == {}
    assert one["sections"]["Fix"].startswith("Call optimizer.zero_grad() once per optimizer step")


@pytest.mark.parametrize("code", ["TC201", "tc201"])
def test_explains_one(rules, capsys, code: str) -> None:
    assert rules("--explain", code) == 0
    out = capsys.readouterr().out
    assert out.startswith("TC201 missing-zero-grad: ")
    assert "\nWhy it matters:\n    " in out


def test_an_earlier_name_finds_the_rule(rules, capsys) -> None:
    assert rules("--explain", "cosine-turns-back") == 0
    assert capsys.readouterr().out.startswith("TC217 cosine-past-t-max: ")


def test_explains_one_as_json(rules, capsys) -> None:
    assert rules("--explain", "TC201", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["code"] == "TC201"


def test_an_explanation_has_the_options(rules, capsys, monkeypatch) -> None:
    monkeypatch.setattr(registry, "RULES", (*RULES, Loud()))
    assert rules("--explain", "XX1") == 0
    assert "\n    ratio = 10.0\n    window = 20\n    only = []\n" in capsys.readouterr().out


def test_an_explanation_is_the_same_words_on_a_terminal(rules, capsys, monkeypatch) -> None:
    rules("--explain", "TC201")
    plain = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rules("--explain", "TC201")
    styled = capsys.readouterr().out
    assert styled.replace("\x1b[1m", "").replace("\x1b[0m", "") == plain


def test_a_name_stands_for_its_code(rules, capsys) -> None:
    assert rules("--explain", "missing-zero-grad") == 0
    assert capsys.readouterr().out.startswith("TC201 missing-zero-grad")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--explain", "TC20"], "choose one of TC201, TC202, TC203"),
        (["--explain", "missing-zero"], "did you mean missing-zero-grad?"),
        (["TC201"], "traincheck rules --explain TC201"),
    ],
)
def test_what_is_no_rule_is_told_with_what_to_do(rules, capsys, words, said) -> None:
    assert rules(*words) == 2
    assert said in capsys.readouterr().err


def test_an_unknown_code_names_the_nearest(rules, capsys) -> None:
    assert rules("--explain", "TC299") == 2
    err = capsys.readouterr().err
    assert "no rule has the code 'TC299'" in err
    assert "did you mean TC2" in err


def test_a_docstring_is_taken_apart() -> None:
    docs = docs_of(BY_CODE["TC201"])
    assert (docs.code, docs.name, docs.theme) == ("TC201", "missing-zero-grad", "Step window")
    assert docs.sections["Source"].startswith("https://")
    assert docs_of(Loud()).summary == "too loud"
