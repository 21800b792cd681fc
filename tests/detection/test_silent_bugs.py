"""The benchmark of silent bugs: every case is valid, a few are run, judging is right.

``python -m benchmarks.silent_bugs`` runs all.
"""

from __future__ import annotations

import difflib
import os
from typing import Any

import pytest

from benchmarks.harness import CommandFailedError
from benchmarks.silent_bugs import bench, judging
from benchmarks.silent_bugs.case import (
    CLEAN,
    RULE,
    CaseError,
    clean_pipelines,
    load_case,
    load_cases,
)
from benchmarks.silent_bugs.recordings import Recordings
from tests.together import together
from traincheck.rules.table import RULES

CASES = {case.id: case for case in load_cases()}
CODES = {rule.info.code for rule in RULES}

QUICK = ("A13", "B42")  # one rank, two ranks; `python -m benchmarks.silent_bugs` runs all
QUICK_CLEAN = ("amp_scaler", "gan")

MOST_LINES = 90
MOST_CHANGED = 8

VALID = """
id = "A13"
title = "zero_grad is missing"
source = "https://example.org"
class = "ORD"
mark = "RULE"
launcher = "python"
codes = ["TC201"]
names = ["Net.fc1.weight"]
first_step = 1
last_step = 2
fault = "optimizer.zero_grad() is not called"
"""

every_case = together("case", CASES.values(), ids=lambda case: case.id)


def test_there_are_enough_of_each() -> None:
    assert len(CASES) >= 60
    assert len(clean_pipelines()) >= 20
    assert {f"{name}.py" for name in bench.REFERENCES} <= {p.name for p in clean_pipelines()}


@every_case
def test_its_rules_exist(case) -> None:
    assert set(case.codes) <= CODES


@every_case
def test_the_twins_differ_in_little(case) -> None:
    healthy, buggy = (path.read_text().splitlines() for path in (case.healthy, case.buggy))
    assert max(len(healthy), len(buggy)) <= MOST_LINES
    changed = [line for line in difflib.ndiff(healthy, buggy) if line[0] in "+-"]
    assert 0 < len(changed) <= MOST_CHANGED


@every_case
def test_a_reader_of_the_buggy_script_is_not_told(case) -> None:
    text = case.buggy.read_text().lower()
    assert not [word for word in ("# bug", "buggy", "fixme", "# wrong") if word in text]


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "silent-bugs"
    folder.mkdir(exist_ok=True)
    return Recordings(folder)


@pytest.mark.parametrize("name", QUICK)
def test_found_by_rules_and_the_twin_left_alone(recordings, name) -> None:
    case = CASES[name]
    assert case.mark == RULE
    line = bench.outcome(bench.Trial(mode=judging.RULES, case=case), recordings, "full")
    assert not judging.broken_promises([line]), line["said"]
    assert line["position"] == 1


@pytest.mark.parametrize("name", QUICK_CLEAN)
def test_a_clean_pipeline_is_left_alone(recordings, name) -> None:
    trial = bench.Trial(mode=judging.RULES, pipeline=CLEAN / f"{name}.py")
    line = bench.outcome(trial, recordings, "full")
    assert not judging.broken_promises([line])
    assert line["steps"] > 0


def test_learned_from_the_twin(recordings) -> None:
    trial = bench.Trial(mode=judging.TWIN, case=CASES["A13"])
    line = bench.outcome(trial, recordings, "full")
    assert line["found"]
    assert not line["false_alarms"]


def written(folder, text=VALID, scripts=("buggy.py", "healthy.py")):
    folder.mkdir()
    (folder / "case.toml").write_text(text)
    for script in scripts:
        (folder / script).write_text("")
    return folder


def test_a_valid_case_is_read(tmp_path) -> None:
    case = load_case(written(tmp_path / "a13"))
    assert (case.id, case.class_, case.codes, case.last_step) == ("A13", "ORD", ("TC201",), 2)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('id = "A13"', 'id = "A13"\nidea = 1', "unknown key idea"),
        ('id = "A13"', "", "id is missing"),
        ('id = "A13"', 'id = "13"', "a letter and two or three digits"),
        ("first_step = 1", 'first_step = "1"', "first_step must be of type int"),
        ("first_step = 1", "first_step = 3", "in this order"),
        ('"RULE"', '"SURE"', "mark must be one of"),
        ('"ORD"', '"ODD"', "class must be one of"),
        ('"python"', '"spawn"', "launcher must be one of"),
        ('["TC201"]', "[]", "must name a rule"),
        ('["TC201"]', '["TC1"]', "codes must be codes"),
        ('["Net.fc1.weight"]', "[]", "names must hold words"),
        ('"https://example.org"', '"example"', "source must be an address"),
        ("names =", "names", "case.toml"),
        ("first_step", 'aborts = "yes"\nfirst_step', "aborts must be of type bool"),
    ],
)
def test_a_case_that_is_not_valid_is_refused(tmp_path, old, new, said) -> None:
    assert old in VALID
    with pytest.raises(CaseError, match=said):
        load_case(written(tmp_path / "a13", VALID.replace(old, new)))


def test_a_case_needs_both_scripts_and_an_id_of_its_own(tmp_path) -> None:
    with pytest.raises(CaseError, match=r"healthy.py is not there"):
        load_case(written(tmp_path / "one", scripts=["buggy.py"]))
    written(tmp_path / "cases")
    written(tmp_path / "cases" / "first")
    written(tmp_path / "cases" / "second")
    with pytest.raises(CaseError, match="several cases have the id A13"):
        load_cases(tmp_path / "cases")


def finding(code: str = "TC201", step: int | None = 1, name: str = "Net.fc1.weight", **more: Any):
    return {
        "kind": "rule" if code.startswith("TC") else "invariant",
        "code": code,
        "severity": "error",
        "first_step": step,
        "title": "a title",
        "message": f"something about {name}",
        "subject": {"api": None, "variable": None, "module": None},
        **more,
    }


def report(*findings: dict[str, Any]) -> dict[str, Any]:
    return {"findings": list(findings), "summary": {"steps": 4}}


A13 = CASES["A13"]
TRUE = {"code": A13.codes[0], "step": A13.first_step, "name": A13.names[0]}


@pytest.mark.parametrize(
    ("changes", "is_true"),
    [
        ({}, True),
        ({"step": A13.last_step}, True),
        ({"step": A13.last_step + 1}, False),
        ({"step": A13.first_step - 1}, False),
        ({"code": "TC102"}, False),
        ({"code": "order"}, True),  # an invariant
        ({"name": "another"}, False),
        ({"name": "another", "evidence": [{"name": A13.names[0]}]}, True),
    ],
)
def test_the_true_cause_has_the_rule_the_step_and_a_name(changes, is_true) -> None:
    assert judging.is_true_cause(A13, finding(**{**TRUE, **changes})) is is_true


def test_the_place_among_all_findings_counts() -> None:
    line = judging.judge(A13, report(finding(step=0), finding(**TRUE)), report())
    assert (line["found"], line["position"], line["step"]) == (True, 2, A13.first_step)
    assert judging.judge(A13, report(), report())["position"] is None


def test_advice_is_no_alarm() -> None:
    line = judging.judge_clean(report(finding(severity="info"), finding(severity="warning")))
    assert (line["advice"], len(line["false_alarms"])) == (1, 1)


def outcome(position: int | None, mark: str = RULE, **more: Any) -> dict[str, Any]:
    found = {"found": position is not None, "position": position, "false_alarms": []}
    return {"mode": "rules", "group": "bug", "case": "A13", "mark": mark, **found, **more}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([outcome(1)] * 9 + [outcome(3)], []),
        ([outcome(1)] * 8 + [outcome(2)] * 2, ["true cause first in 8 of 10"]),
        ([outcome(1)] * 9 + [outcome(4)], ["only at place 4"]),
        ([outcome(1)] * 19 + [outcome(None)], ["missed"]),
        ([outcome(1, "RULE~")] * 3 + [outcome(None, "RULE~")] * 2, []),
        ([outcome(1, "RULE~"), outcome(None, "RULE~")], ["only 1 of 2 RULE~"]),
        ([outcome(None, "REF")], []),
        ([outcome(None, mode="twin")], []),
        ([outcome(1, false_alarms=["TC201: no"])], ["false alarm: TC201: no"]),
        ([outcome(1, error="it ended with 3")], ["it ended with 3"]),
    ],
)
def test_promises(lines, said) -> None:
    promises = judging.broken_promises(lines)
    assert len(promises) == len(said)
    assert all(expected in promise for expected, promise in zip(said, promises))


def test_totals_are_sums_by_mode_and_mark() -> None:
    rows = judging.totals([outcome(1), outcome(4), outcome(None), outcome(1, "REF")])
    assert [(row["mark"], row["cases"], row["found"], row["first"]) for row in rows] == [
        ("RULE", 3, 2, 1),
        ("REF", 1, 1, 1),
    ]
    assert rows[0]["among_first"] == 1


def test_what_does_not_exist_cannot_be_asked_for(capsys) -> None:
    assert bench.main(["--case", "Z99"]) == 2
    assert "there is no Z99" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench.main(["--mode", "magic"])


def test_a_program_that_fails_is_told(tmp_path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(3)\n")
    line = bench.outcome(
        bench.Trial(mode=judging.RULES, pipeline=script), Recordings(tmp_path), "full"
    )
    assert "ended with 3" in line["error"]
    assert judging.broken_promises([line])


def test_a_case_that_aborts_is_judged_by_what_was_recorded(tmp_path) -> None:
    folder = written(tmp_path / "a13", VALID + "aborts = true\n")
    (folder / "buggy.py").write_text("raise SystemExit(3)\n")
    case = load_case(folder)
    assert case.aborts
    recordings = Recordings(tmp_path)
    assert recordings.run(case.buggy, case.launcher, aborts=True).is_dir()
    (folder / "buggy.py").write_text("raise SystemExit(4)\n")
    with pytest.raises(CommandFailedError, match="ended with 4"):
        recordings.run(case.buggy, case.launcher)
