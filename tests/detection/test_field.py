"""The field benchmark: every case is valid, its programs differ, judging is right.

``python -m benchmarks.field`` runs them.
"""

from __future__ import annotations

import ast
import difflib
import json
from typing import Any

import pytest

from benchmarks.field import bench, judging
from benchmarks.field.case import (
    FRESH,
    KNOWN,
    FieldCaseError,
    healthy_pipelines,
    load_case,
    load_cases,
)
from tests.together import together

CASES = {case.name: case for case in load_cases()}
VALID = {
    "title": "the target loads itself",
    "source": "https://example.org",
    "root_cause": "load_state_dict of the target is given its own state",
    "first_step": 4,
    "launcher": "python",
    "says": [["load_state_dict"], ["itself", "own"]],
}

every_case = together("case", CASES.values(), ids=lambda case: case.name)


def test_there_are_enough_of_each() -> None:
    populations = [case.population for case in CASES.values()]
    assert populations.count(KNOWN) == 61
    assert populations.count(FRESH) >= 15
    assert len(healthy_pipelines()) >= 30
    assert len({case.source for case in CASES.values()}) == len(CASES)


@every_case
def test_the_programs_of_a_case_differ_in_little(case) -> None:
    buggy, clean = (path.read_text().splitlines() for path in (case.buggy, case.clean))
    changed = [line for line in difflib.ndiff(clean, buggy) if line[0] in "+-"]
    assert 0 < len(changed) <= 20
    assert ast.dump(ast.parse("\n".join(buggy))) != ast.dump(ast.parse("\n".join(clean)))


@every_case
def test_a_reader_of_the_buggy_script_is_not_told(case) -> None:
    text = case.buggy.read_text().lower()
    assert not [word for word in ("# bug", "buggy", "fixme", "# wrong") if word in text]


@together("path", healthy_pipelines(), ids=lambda path: path.stem)
def test_a_healthy_pipeline_says_what_it_is_and_is_seeded(path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert "torch.manual_seed(0)" in text


def written(folder, values=VALID, scripts=("buggy.py", "clean.py")):
    folder.mkdir()
    (folder / "case.json").write_text(json.dumps(values))
    for script in scripts:
        (folder / script).write_text("")
    return folder


def test_a_valid_case_is_read(tmp_path) -> None:
    case = load_case(written(tmp_path / "target"), FRESH)
    assert (case.name, case.population, case.first_step) == ("target", FRESH, 4)
    assert case.says == (("load_state_dict",), ("itself", "own"))
    assert case.twin == case.facts == case.says


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"idea": 1}, "unknown key idea"),
        ({"first_step": "4"}, "first_step must be of type int"),
        ({"first_step": -1}, "first_step must be a step"),
        ({"launcher": "spawn"}, "launcher must be one of"),
        ({"source": "example"}, "source must be an address"),
        ({"title": " "}, "title is empty"),
        ({"says": []}, "says must hold groups of words"),
        ({"says": [["a"], []]}, "says must hold groups of words"),
        ({"twin": ["step"]}, "twin must hold groups of words"),
        ({"facts": [["step", ""]]}, "facts must hold groups of words"),
    ],
)
def test_a_case_that_is_not_valid_is_refused(tmp_path, changes, said) -> None:
    with pytest.raises(FieldCaseError, match=said):
        load_case(written(tmp_path / "target", {**VALID, **changes}))


def test_a_case_needs_facts_and_both_scripts(tmp_path) -> None:
    with pytest.raises(FieldCaseError, match=r"clean.py is missing"):
        load_case(written(tmp_path / "one", scripts=["buggy.py"]))
    with pytest.raises(FieldCaseError, match="title is missing"):
        load_case(written(tmp_path / "two", {"source": "https://example.org"}))


def finding(message: str, kind: str = "rule", step: int | None = 5, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "code": "TC999" if kind == "rule" else "order",
        "severity": "error",
        "first_step": step,
        "title": "",
        "message": message,
        "subject": {"api": None},
        **more,
    }


@pytest.fixture
def case(tmp_path):
    values = {**VALID, "twin": [["target_net"], ["equal", "unchanged"]]}
    return load_case(written(tmp_path / "target", values))


RIGHT = "load_state_dict of target_net is given its own state"
EFFECT = "target_net is unchanged by load_state_dict"


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        (finding(RIGHT), True),
        (finding(RIGHT, step=0), True),  # a rule may see the cause before its effect
        (finding("load_state_dict is called"), False),
        (finding("load_state_dict", likely_cause="It is given its own state."), True),
        (finding(EFFECT, kind="invariant"), True),
        (finding(EFFECT, kind="invariant", step=3), False),  # nothing has happened yet
        (finding(RIGHT, kind="invariant"), False),
        (finding("an effect", kind="invariant", likely_cause=EFFECT), False),
    ],
)
def test_a_finding_counts_only_when_its_text_names_the_cause(case, seen, names) -> None:
    assert judging.names_cause(case, seen) is names


def report(*findings: dict[str, Any]) -> dict[str, Any]:
    return {"findings": list(findings), "summary": {"steps": 4}}


def test_an_alarm_about_something_else_is_not_the_right_cause(case) -> None:
    other = judging.judge(case, report(finding("the loss is NaN")), report())
    assert (other["verdict"], other["position"]) == (judging.OTHER, None)
    advice = judging.judge(case, report(finding("a loop", severity="info")), report())
    assert advice["verdict"] == judging.NOTHING
    right = judging.judge(case, report(finding("other"), finding(RIGHT)), report(finding("x")))
    assert (right["verdict"], right["position"], right["code"]) == (judging.RIGHT, 2, "TC999")
    assert len(right["alarms"]) == 1


def test_totals_and_troubles() -> None:
    line = {"name": "a", "population": KNOWN, "mode": "rules", "alarms": []}
    judged = {"verdict": judging.RIGHT, "code": "TC999", "codes": ["TC999"], "position": None}
    lines = [
        {**line, **judged, "position": 1, "severity": "info"},
        {**line, **judged, "verdict": judging.OTHER, "alarms": ["TC101: no"]},
        {**line, "error": "it ended with 3"},
        {**line, "skipped": bench.NO_PROBE},
    ]
    (row,) = judging.totals(lines)
    assert (row["programs"], row[judging.RIGHT], row[judging.OTHER]) == (4, 1, 1)
    assert (row["first"], row["as advice"], row["with alarms"], row["failed"]) == (1, 1, 1, 1)
    assert row["not run"] == 1
    assert bench.troubles(lines) == [
        "a (rules) failed: it ended with 3",
        "a (rules) false alarm: TC101: no",
    ]
    bench.show(lines)


def test_an_unknown_name_is_an_error(capsys) -> None:
    assert bench.main(["--case", "no-such-case"]) == 2
    assert "no-such-case" in capsys.readouterr().err


def test_a_recorder_without_probes_is_said(monkeypatch) -> None:
    monkeypatch.setattr(bench, "can_probe", lambda: False)
    trial = bench.Trial(mode=judging.PROBE, case=next(iter(CASES.values())))
    line = bench.outcome(trial, None, bench.How(view="full", references=1), None)
    assert line["skipped"] == bench.NO_PROBE
