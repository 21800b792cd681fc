"""docs/torch-audit.md has every check of the other tool, and only rules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.torch_audit_cases.all_cases import CASES
from benchmarks.torch_audit_checks import OLDER, RELEASE, THRESHOLDS
from benchmarks.torch_audit_parity import GPU, judge, page, threshold_rows
from traincheck.rules.table import RULES

PAGE = Path(__file__).parents[2] / "docs" / "torch-audit.md"
CODES = {rule.info.code for rule in RULES}


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    """First cell of each row of the page -> the others."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found: dict[str, list[str]] = {}
    for first, *others in cells:
        found.setdefault(first, others)  # the last table names cases again
    return found


def test_every_check_of_the_other_tool_is_there(rows: dict[str, list[str]]) -> None:
    assert len(RELEASE) == 24
    assert list(OLDER) == [str(number) for number in range(1, 37)]
    missing = [i for i in RELEASE if f"`{i}`" not in rows]
    missing += [i for i in OLDER if f"older {i}" not in rows]
    assert not missing


def test_every_check_has_a_case() -> None:
    known = {*RELEASE, *OLDER}
    tried = {check for case in CASES.values() for check in case.checks}
    assert tried == known


def test_cases_and_page_name_rules_that_exist() -> None:
    named = {code for case in CASES.values() for code in case.codes}
    named |= set(re.findall(r"\bTC\d{3}\b", PAGE.read_text(encoding="utf-8")))
    assert named <= CODES
    assert len(named) > 30


def test_the_page_has_each_case_and_what_it_is(rows: dict[str, list[str]]) -> None:
    for case in CASES.values():
        about, kind, *verdicts = rows[f"`{case.id}`"]
        assert (about, kind) == (case.about, case.kind), "write docs/torch-audit.md again"
        assert GPU not in verdicts or case.needs_gpu
    stale = {first for first in rows if re.fullmatch(r"`[a-z][a-z0-9-]+`", first)}
    assert stale <= {f"`{name}`" for name in CASES}


def test_the_page_has_each_threshold_as_it_is() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Thresholds")[2].partition("\n## ")[0]
    listed = [line for line in text.splitlines() if line.startswith("| ")][2:]
    made = [" | ".join(row) for row in threshold_rows()]
    assert len(made) == len(THRESHOLDS) > 20
    assert [line[2:-2] for line in listed] == made, "write docs/torch-audit.md again"


@pytest.mark.parametrize(
    ("name", "said", "verdict"),
    [
        ("nan-parameter", {"findings": {"TC701": 1}, "end": ""}, "found"),
        ("nan-parameter", {"findings": {"TC906": 1}, "end": ""}, "missed"),
        ("nan-parameter", {"findings": {}, "end": "crash: x"}, "crash"),
        ("clean-mlp", {"findings": {"TC950": 1}, "end": "", "loud": []}, "quiet"),
        ("clean-mlp", {"findings": {"TC950": 1}, "end": "", "loud": ["TC950"]}, "false alarm"),
        ("clean-mlp", {"findings": {"TC901": 1}, "end": ""}, "false alarm"),
        ("clean-mlp", {"findings": {}, "end": "crash: x"}, "crash"),
        ("copied-model", {"findings": {"TC906": 1}, "end": ""}, "unharmed"),
        ("copied-model", {"findings": {}, "end": "corrupted: x"}, "corrupted"),
        ("ids-beyond-the-vocabulary", {"findings": {}, "end": "crash: x"}, "stops by itself"),
    ],
)
def test_verdicts(name: str, said: dict, verdict: str) -> None:
    assert judge(CASES[name], said, CASES[name].codes)["verdict"] == verdict


def test_a_verdict_is_on_the_page_with_what_gave_it() -> None:
    found = {"verdict": "found", "by": {"TA100": 3}, "others": 2, "end": ""}
    line = {"case": "x", "kind": "sabotaged", "about": "a|b", "checks": ["TA100"]}
    text = page([{**line, "codes": ["TC701"], "theirs": found, "ours": found}])
    assert "| `x` | a\\|b | sabotaged | found TA100 x3 (+2) |" in text
    assert f"| `TA100` | {RELEASE['TA100']} | TC701 | x: found / found |" in text
