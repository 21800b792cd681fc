"""traincheck rules: the list, and the explanation of one."""

from __future__ import annotations

import sys

import pytest

from traincheck.cli import main as entry
from traincheck.rules._table import RULES


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
    assert "missing-zero-grad: gradients are not cleared" in lines[2]
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("code", ["TC201", "tc201"])
def test_explains_one(rules, capsys, code: str) -> None:
    assert rules("--explain", code) == 0
    out = capsys.readouterr().out
    assert out.startswith("TC201 missing-zero-grad: ")
    assert "\nWhy it matters:\n    " in out


def test_an_unknown_code_names_the_nearest(rules, capsys) -> None:
    assert rules("--explain", "TC204") == 2
    err = capsys.readouterr().err
    assert "no rule has the code 'TC204'" in err
    assert "did you mean TC20" in err
