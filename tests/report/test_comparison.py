"""The reference beside the run, as text and JSON; the line of code of a finding."""

from __future__ import annotations

import io
import json
import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.padding import Padding

from tests.report.test_golden import REPORTS, written
from traincheck.check.run_overview import RunOverview
from traincheck.report._beside import beside, excerpt_json
from traincheck.report._places import code_of
from traincheck.report.registry import load_format
from traincheck.report.run_summary import RunSummary, write_run_summary
from traincheck.schema.claims import Row
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Finding, Report, Subject

ROWS = (
    Row(reference="Adam.zero_grad", observed=None, mark="-"),
    Row(reference="  Linear.forward x2", observed="  Linear.forward x3", mark="~"),
    Row(reference="backward", observed="backward  train.py:84"),
    Row(reference=None, observed="SGD.step", mark="+"),
)
SIDES = ("the reference", "this run")
NOW = 1_000_000_000.0


def shown(width: int) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    console.print(
        Padding(beside(ROWS, console, (*SIDES[:1], f"{SIDES[1]} at step 3")), (0, 0, 0, 2))
    )
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("width", [64, 80, 110])
def test_columns_are_aligned(width: int) -> None:
    lines = shown(width)
    assert len(lines) == 1 + len(ROWS)
    assert {line.index("|") for line in lines} == {lines[0].index("|")}
    assert lines[0].split("|")[1].strip() == "this run at step 3"
    assert lines[1].startswith("  - Adam.zero_grad")
    assert lines[1].endswith("|")
    assert lines[2].startswith("  ~   Linear.forward x2")
    assert lines[4].split("|") == [lines[4].split("|")[0], " SGD.step"]
    assert all(len(line) <= width for line in lines)


def test_on_a_narrow_terminal_one_is_below_the_other() -> None:
    assert shown(40) == [
        "  the reference:",
        "  - Adam.zero_grad",
        "  ~   Linear.forward x2",
        "    backward",
        "  this run at step 3:",
        "  ~   Linear.forward x3",
        "    backward  train.py:84",
        "  + SGD.step",
    ]


def test_json_has_each_side_with_its_marks() -> None:
    assert excerpt_json(ROWS, SIDES) == {
        "sides": ["the reference", "this run"],
        "reference": ["- Adam.zero_grad", "~   Linear.forward x2", "  backward"],
        "observed": ["~   Linear.forward x3", "  backward  train.py:84", "+ SGD.step"],
    }
    assert excerpt_json((), SIDES)["reference"] == []


def test_what_else_broke_is_counted_and_listed_where_asked_for() -> None:
    brief, full = written("text", REPORTS["beside"]()), written("text", REPORTS["beside-verbose"]())
    assert "3 more checks (contains, order 2; list them with --verbose)" in brief
    assert "Also failed:" not in brief
    assert "In every training step, zero_grad is called." in full
    assert "--verbose" not in full
    assert "Then:" in brief
    assert "Then:" not in full  # every finding is there in full
    assert full.count("likely cause") == brief.count("likely cause") + 1


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Finding, Report]:
    """A finding at line 2 of a file that is older than the run."""
    source = tmp_path / "train.py"
    source.write_text("import torch\n    optimizer.step()  # here\n")
    os.utime(source, (NOW - 10, NOW - 10))
    report = REPORTS["one-finding"]()
    event = CallEvent(0, 0, 0, "train", 0, "p1-t0", api="x", span=0, where="train.py:2")
    finding = replace(report.findings[0], evidence=(event,))
    return finding, replace(
        report,
        root=str(tmp_path),
        sources=(tmp_path,),
        hostname=platform.node(),
        started=NOW,
        findings=[finding],
    )


def test_the_line_of_code_is_shown(recorded: tuple[Finding, Report]) -> None:
    finding, report = recorded
    assert code_of(finding, report) == "optimizer.step()  # here"
    text = written("text", report).splitlines()
    place = next(i for i, line in enumerate(text) if line.startswith("  where "))
    assert text[place + 1].strip() == "optimizer.step()  # here"


def test_sarif_has_the_line_too(recorded: tuple[Finding, Report]) -> None:
    _, report = recorded
    (run,) = json.loads(written("sarif", report))["runs"]
    region = run["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 2, "snippet": {"text": "optimizer.step()  # here"}}


def test_a_line_that_may_have_changed_is_not_shown(
    recorded: tuple[Finding, Report], tmp_path: Path
) -> None:
    finding, report = recorded
    assert code_of(finding, replace(report, hostname="elsewhere")) == ""
    assert code_of(finding, replace(report, started=0.0)) == ""
    assert code_of(replace(finding, evidence=()), report) == ""
    os.utime(tmp_path / "train.py", (NOW + 1, NOW + 1))
    assert code_of(finding, report) == ""
    (tmp_path / "train.py").unlink()
    assert code_of(finding, report) == ""


def test_a_line_beyond_the_end_is_none(recorded: tuple[Finding, Report]) -> None:
    finding, report = recorded
    far = CallEvent(0, 0, 0, "train", 0, "p1-t0", api="x", span=0, where="train.py:99")
    assert code_of(replace(finding, evidence=(far,)), report) == ""


def test_a_line_of_the_program_comes_before_one_of_a_package(
    recorded: tuple[Finding, Report],
) -> None:
    finding, report = recorded
    package = CallEvent(
        0,
        0,
        0,
        "train",
        0,
        "p1-t0",
        api="y",
        span=0,
        where="/v/lib/site-packages/accelerate/s.py:82",
    )
    both = replace(finding, evidence=(package, *finding.evidence))
    assert code_of(both, report) == "optimizer.step()  # here"


def named(report: Report, finding: Finding, api: str, source: str) -> str:
    """What JSON says of the place of a finding that no event tells a line of."""
    program = Path(report.root) / "train.py"
    program.write_text(source)
    os.utime(program, (NOW - 10, NOW - 10))
    finding = replace(finding, evidence=(), subject=Subject(api=api))
    document = json.loads(written("json", replace(report, program="train.py", findings=[finding])))
    place = document["findings"][0]["where"]
    return "" if place is None else f"{place['line']} {place['code']} {place['found_by']}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import x\nloss = F.cross_entropy(a, b)\n", "2 loss = F.cross_entropy(a, b) name"),
        ("f = nn.CrossEntropyLoss()\n", "1 f = nn.CrossEntropyLoss() name"),
        ("cross_entropy(a)\ncross_entropy(b)\n", ""),
        ("cross_entropy = 3\n", ""),
        ("this is no Python", ""),
    ],
)
def test_a_call_that_is_there_once_is_found_by_its_name(
    recorded: tuple[Finding, Report], source: str, expected: str
) -> None:
    finding, report = recorded
    assert named(report, finding, "torch.nn.functional.cross_entropy", source) == expected
    assert (
        named(replace(report, started=0.0), finding, "torch.nn.functional.cross_entropy", source)
        == ""
    )


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("github", "train.py,line=2,"),
        ("sarif", '"startLine": 2'),
        ("junit", 'line="2"'),
        ("run", "train.py:2 (found by its name)"),
    ],
)
def test_every_form_tells_a_place_found_by_name(
    recorded: tuple[Finding, Report], form: str, told: str
) -> None:
    finding, report = recorded
    api = "torch.nn.functional.dropout"
    named(report, finding, api, "x = 1\nx = F.dropout(x)\n")
    finding = replace(finding, evidence=(), subject=Subject(api=api))
    report = replace(report, program="train.py", findings=[finding])
    stream = io.StringIO()
    if form == "run":
        write_run_summary(RunSummary(report=report, watched=RunOverview(), trace=""), stream)
    else:
        load_format(form)(report, stream)
    assert told in stream.getvalue()


def test_text_says_how_a_place_was_found(recorded: tuple[Finding, Report]) -> None:
    finding, report = recorded
    api = "torch.nn.functional.dropout"
    named(report, finding, api, "x = 1\nx = F.dropout(x)\n")
    finding = replace(finding, evidence=(), subject=Subject(api=api))
    text = written("text", replace(report, program="train.py", findings=[finding]))
    assert "train.py:2 (found by its name)" in text
    assert "x = F.dropout(x)" in text
