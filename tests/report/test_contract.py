"""What every form of a report owes, on the same reports: each finding told, no number lost."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from xml.etree import ElementTree as ET
from xml.sax.saxutils import unescape

import jsonschema
import pytest

from tests.report.test_golden import REPORTS, several, suppressed, written
from traincheck.check.run_overview import RunOverview
from traincheck.report.registry import FORMATS
from traincheck.report.run_summary import RunSummary, write_run_summary
from traincheck.schema.findings import NOTHING_CHECKED, Finding, Presentation, Report, Verdict

SARIF_SCHEMA = Path(__file__).parent / "schemas" / "sarif-schema-2.1.0.json"
ODD = "50% of it:\n\r\x1b[31m<b>\"a\" & 'b'</b>, ]]> ::error::x \ud7ff\x00"

reports = pytest.mark.parametrize("name", sorted(REPORTS))


@pytest.fixture(autouse=True)
def outside_of_a_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may themselves run in one."""
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)


forms = pytest.mark.parametrize("form", sorted(FORMATS.built_in))


def odd() -> Report:
    """A report whose every text holds what some format reserves."""
    report = several()
    strange = [
        replace(f, title=ODD, message=ODD, fix=ODD, likely_cause=ODD, observed=ODD)
        for f in report.findings
    ]
    return replace(report, findings=strange)


def in_full(report: Report) -> Report:
    return replace(report, presentation=Presentation(fail_on="info", info=True, suppressed=True))


@forms
@reports
def test_every_finding_is_told_by_its_code(form: str, name: str) -> None:
    report = in_full(REPORTS[name]())
    text = written(form, report)
    assert all(finding.code in text for finding in report.findings)
    assert text.endswith("\n")


@forms
@reports
def test_the_place_is_told(form: str, name: str) -> None:
    report = in_full(REPORTS[name]())
    places = {e.where for f in report.findings[:1] for e in f.evidence[:1] if hasattr(e, "where")}
    assert bool(places) is bool(report.findings)
    for place in places:
        path, _, line = place.rpartition(":")
        text = unquote(written(form, report))
        assert path in text
        assert line in text


@forms
def test_odd_texts_break_no_form(form: str) -> None:
    text = written(form, odd())
    if form in {"json", "sarif"}:
        assert json.loads(text)
    if form == "junit":
        assert "<b>" in "".join(ET.fromstring(text).itertext())
    if form == "github":
        assert len(text.splitlines()) == len(several().findings) + 1


@forms
def test_the_same_report_is_written_the_same(form: str) -> None:
    assert written(form, several()) == written(form, several())


@pytest.mark.parametrize("form", ["text", "github"])
def test_what_was_suppressed_is_counted(form: str) -> None:
    assert "2 suppressed (1 by baseline, 1 by comment)" in written(form, suppressed())


def test_the_summary_of_a_run_counts_it_too() -> None:
    stream = io.StringIO()
    write_run_summary(RunSummary(report=suppressed(), watched=RunOverview(), trace="x"), stream)
    assert "2 suppressed (1 by baseline, 1 by comment)" in stream.getvalue()


@pytest.mark.parametrize("fail_on", ["warning", "info"])
def test_the_summary_of_a_run_shows_advice_that_fails_it(fail_on: str) -> None:
    (early,) = suppressed().findings
    assert early.severity == "info"
    report = replace(suppressed(), presentation=Presentation(fail_on=fail_on))
    stream = io.StringIO()
    write_run_summary(RunSummary(report=report, watched=RunOverview(), trace="x"), stream)
    is_shown = fail_on == "info"
    assert ("1 finding in 5 steps" in stream.getvalue()) is is_shown
    assert (f"1 ({early.code}); show: " in stream.getvalue()) is not is_shown


def test_the_summary_of_a_run_cuts_notes_between_words() -> None:
    stream = io.StringIO()
    report = replace(several(), notes=(" ".join(["unabridged"] * 40),), skipped_lines=0)
    write_run_summary(RunSummary(report=report, watched=RunOverview(), trace="here"), stream)
    told = stream.getvalue().partition("  note")[2].partition("  trace")[0].split()
    assert told[-1] == "..."
    assert set(told[:-1]) == {"unabridged"}


def test_fixes_and_commands_are_shown_whole() -> None:
    fix, trace = (" ".join([word] * 60) for word in ("repair", "traincheck-check"))
    findings = [replace(finding, fix=fix) for finding in several().findings]
    report = replace(several(), findings=findings)
    serious = sum(finding.severity != "info" for finding in findings)
    stream = io.StringIO()
    write_run_summary(RunSummary(report=report, watched=RunOverview(), trace=trace), stream)
    for text in (stream.getvalue(), written("text", report)):
        assert "..." not in text
        assert text.split().count("repair") == 60 * serious
    assert stream.getvalue().split().count("traincheck-check") == 60


@pytest.mark.parametrize("is_below", [True, False])
def test_every_form_shows_a_path_in_the_same_way(tmp_path, monkeypatch, is_below: bool) -> None:
    """Relative below the working directory, else absolute."""
    script = tmp_path / "job" / "train.py"
    script.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    script.write_text("optimizer.step()\n" * 99)
    first = several().findings[0]
    call = next(event for event in first.evidence if event.kind == "call")
    finding = replace(first, evidence=(call.replace(where=f"{script}:7"),))
    report = replace(several(), findings=[finding], root=str(tmp_path))
    monkeypatch.chdir(script.parent if is_below else tmp_path / "elsewhere")
    shown = "train.py" if is_below else str(script)
    stream = io.StringIO()
    write_run_summary(RunSummary(report=report, watched=RunOverview(), trace="here"), stream)
    document = json.loads(written("json", report))
    assert document["findings"][0]["where"]["file"] == shown
    for text in (stream.getvalue(), written("text", report)):
        assert f"where  {shown}:7\n" in re.sub(r"where +", "where  ", text)
    assert f"file={shown},line=7" in written("github", report)
    assert f'file="{shown}" line="7"' in written("junit", report)


# -- SARIF


def run_of(report: Report) -> dict[str, Any]:
    (run,) = json.loads(written("sarif", report))["runs"]
    return run


@reports
def test_sarif_is_what_the_standard_says(name: str) -> None:
    schema = json.loads(SARIF_SCHEMA.read_text(encoding="utf-8"))
    document = json.loads(written("sarif", REPORTS[name]()))
    # Only its copy here names the version so that golden files last.
    jsonschema.Draft4Validator(schema).validate(document)
    assert document["version"] == "2.1.0"


def test_the_standard_refuses_what_it_does_not_say() -> None:
    schema = json.loads(SARIF_SCHEMA.read_text(encoding="utf-8"))
    document = json.loads(written("sarif", several()))
    document["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(schema).validate(document)


@reports
def test_sarif_results_lead_to_their_rules(name: str) -> None:
    report = REPORTS[name]()
    run = run_of(replace(report, presentation=replace(report.presentation, verbose=False)))
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert all(r["help"]["text"].startswith(r["id"]) for r in rules if r["id"].startswith("TC"))
    assert {r["id"] for r in rules} == {result["ruleId"] for result in run["results"]}


def test_sarif_has_all_rules_that_were_checked_on_demand() -> None:
    rules = run_of(with_all(several()))["tool"]["driver"]["rules"]
    checked = {info.code for info in several().infos.values() if info.kind == "rule"}
    assert checked <= {rule["id"] for rule in rules}


def test_sarif_has_fingerprints_and_suppressions() -> None:
    report = suppressed()
    results = run_of(report)["results"]
    prints = [result["partialFingerprints"]["traincheck/v1"] for result in results]
    assert prints == [f.id for f in (*report.findings, *report.suppressed)]
    kinds = [[s["kind"] for s in result.get("suppressions", [])] for result in results]
    assert kinds == [[], ["inSource"], ["external"]]
    assert results[1]["suppressions"][0]["justification"] == "on purpose"


def test_sarif_and_github_find_the_file_from_here(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "my src").mkdir()
    (tmp_path / "my src" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    report = replace(several(), root=str(tmp_path / "my src"))
    (location,) = run_of(report)["results"][0]["locations"]
    place = location["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "my%20src/train.py"},
        "region": {"startLine": 88},
    }
    assert written("github", report).startswith("::error file=my src/train.py,line=88,title=")


def test_in_a_workflow_paths_start_at_the_checkout(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path / "src")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    report = replace(several(), root=str(tmp_path / "src"))
    assert "file=src/train.py,line=88" in written("github", report)


def test_a_file_elsewhere_is_named_in_full(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    report = replace(several(), root=str(tmp_path / "elsewhere"))
    (location,) = run_of(report)["results"][0]["locations"]
    uri = urlparse(location["physicalLocation"]["artifactLocation"]["uri"])
    assert (uri.scheme, uri.path) == ("file", str(tmp_path / "elsewhere" / "train.py"))


def test_a_file_that_is_gone_is_named_as_recorded() -> None:
    report = replace(several(), root="/no/such/folder")
    assert "file=train.py,line=88" in written("github", report)


# -- JUnit


def cases(report: Report) -> dict[str, ET.Element]:
    suite = ET.fromstring(written("junit", report))[0]
    return {case.attrib["name"].split()[0]: case for case in suite.findall("testcase")}


def with_all(report: Report) -> Report:
    return replace(report, presentation=replace(report.presentation, verbose=True))


@pytest.mark.parametrize("verbose", [False, True])
@reports
def test_junit_has_a_case_for_each_check_that_was_decided(name: str, verbose: bool) -> None:
    report = REPORTS[name]()
    report = with_all(report) if verbose else report
    is_short = not report.presentation.verbose
    undecided = {Verdict.NOT_TRIGGERED, Verdict.NOT_OBSERVABLE} if is_short else set()
    root = ET.fromstring(written("junit", report))
    found = cases(report)
    shown = [check for check, verdict in report.verdicts.items() if verdict not in undecided]
    of_run = list(found)[len(shown) :]
    assert list(found)[: len(shown)] == shown
    assert of_run == ["something"] * (report.exit_status == NOTHING_CHECKED)
    suite = root[0]
    assert int(suite.attrib["tests"]) == len(found)
    counts = {one.attrib["name"]: int(one.attrib["value"]) for one in suite.iter("property")}
    assert counts == {
        verdict.value: report.count(verdict)
        for verdict in (Verdict.NOT_TRIGGERED, Verdict.NOT_OBSERVABLE)
    }
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase[failure]"))
    assert int(suite.attrib["skipped"]) == len(suite.findall("testcase[skipped]"))


@reports
def test_a_junit_case_passes_only_when_the_check_held(name: str) -> None:
    report = with_all(REPORTS[name]())
    advice = {f.check for f in report.findings if not report.presentation.fails(f)}
    found = cases(report)
    for check, case in ((check, found[check]) for check in report.verdicts):
        passed = case.find("failure") is None and case.find("skipped") is None
        assert passed == (report.verdicts[check] is Verdict.HELD) or check in advice


def test_junit_tells_why_a_case_is_skipped() -> None:
    report = with_all(replace(several(), unobservable={"inv-8": "recorded without batch events"}))
    message = cases(report)["inv-8"].find("skipped").attrib["message"]
    assert message == "not observable: recorded without batch events"
    message = cases(suppressed())["TC203"].find("skipped").attrib["message"]
    assert message == "suppressed by comment: on purpose"


def test_junit_tells_an_effect_from_a_cause() -> None:
    report = several()
    verdicts = {**report.verdicts, "inv-1": Verdict.VIOLATED}
    skipped = cases(replace(report, verdicts=verdicts))["inv-1"].find("skipped")
    assert skipped.attrib["message"].startswith("violated as an effect of TC203: ")


@forms
def test_a_run_in_which_nothing_was_checked_is_told_with_what_to_do(form: str) -> None:
    report = REPORTS["nothing-checked"]()
    said = " ".join(unescape(written(form, report)).split())
    assert "nothing was checked: no training step was recorded" in said
    assert "check that the program reaches optimizer.step()" in said


@forms
def test_steps_that_are_required_are_counted(form: str) -> None:
    report = replace(REPORTS["healthy"](), presentation=Presentation(require_steps=100))
    assert "5 of the 100 required steps were recorded" in " ".join(written(form, report).split())
    assert "required" not in written(form, REPORTS["healthy"]())


def test_junit_fails_no_build_where_an_empty_run_is_allowed() -> None:
    report = REPORTS["nothing-checked"]()
    assert "<failure" in written("junit", report)
    report = replace(report, presentation=Presentation(allow_empty=True))
    assert "<failure" not in written("junit", report)


# -- GitHub


@pytest.mark.parametrize(
    ("severity", "command"), [("error", "error"), ("warning", "warning"), ("info", "notice")]
)
def test_github_commands(severity: str, command: str) -> None:
    finding: Finding = replace(several().findings[0], severity=severity)
    line = written("github", replace(several(), findings=[finding])).splitlines()[0]
    assert re.match(rf"::{command} file=train\.py,line=88,title=TC203 [^:,]+::", line)


def test_github_escapes_what_the_runner_would_read() -> None:
    line = written("github", odd()).splitlines()[0]
    properties, message = line.removeprefix("::error ").split("::", 1)
    assert "title=TC203 50%25 of it%3A\\n\\r" in properties
    assert "%2C" in properties
    assert message.startswith("50%25 of it:\\n\\r")
    assert "%0AFix: " in message  # a line break of ours
