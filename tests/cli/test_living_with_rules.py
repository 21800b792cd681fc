"""traincheck check in a project: its configuration, its comments, its baseline, its formats."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.builders import MLP, TraceBuilder, healthy_run
from tests.rules.test_options import Loud
from traincheck.cli import main as entry
from traincheck.report.registry import FORMATS
from traincheck.rules import registry
from traincheck.rules.table import RULES
from traincheck.store.manifest import Manifest
from traincheck.store.writer import TraceWriter

Check = Callable[..., int]
ACCEPT = '[[suppress]]\ncode = "TC201"\nreason = "gradients are summed on purpose"\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a recorded run that misses zero_grad, and its script."""
    builder = TraceBuilder().process().model("Net", MLP).optimizer()
    with TraceWriter(tmp_path / "run", Manifest(cwd=str(tmp_path))) as writer:
        for event in builder.steps(4, omit={"zero_grad"}).build():
            writer.emit(event)
    (tmp_path / "train.py").write_text("pass\n" * 87 + "optimizer.step()\n")
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def check(project: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    def run(*words: object) -> int:
        line = ["traincheck-check", "-t", str(project / "run"), *map(str, words)]
        monkeypatch.setattr(sys, "argv", line)
        return entry.check_main()

    return run


@pytest.mark.parametrize(
    ("text", "words", "status"),
    [
        ("", [], 1),
        ('select = ["TC1"]', [], 0),
        ('select = ["TC1"]', ["--select", "TC2"], 1),
        ('ignore = ["TC201"]', [], 0),
        ('ignore = ["TC201"]', ["--ignore", "TC1"], 1),
        ('ignore = ["TC2"]', ["--select", "TC201"], 1),
        ('ignore = ["TC2"]', ["--select", "TC2", "--ignore", "TC201"], 0),
        ('select = ["TC2"]', ["--ignore", "TC201"], 0),
        (ACCEPT, [], 0),
        (ACCEPT + 'variable = "Other.*"', [], 1),
        (ACCEPT + 'variable = "Net.*"', [], 0),
        ('[collect]\nlevel = "deep"', [], 1),
    ],
)
def test_a_configuration(project: Path, check: Check, text: str, words: list, status: int) -> None:
    (project / "traincheck.toml").write_text(text)
    assert check(*words) == status


def test_it_is_found_from_the_working_directory_upward(
    project: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "pyproject.toml").write_text('[tool.traincheck]\nignore = ["TC2"]\n')
    monkeypatch.chdir(project / "deep")
    assert check() == 0
    (project / "deep" / "other.toml").write_text("")
    assert check("--config", "other.toml") == 1


def test_fail_on_in_a_configuration(project: Path, check: Check, monkeypatch) -> None:
    from dataclasses import replace

    from traincheck.cli import cmd_check

    real = cmd_check._check

    def changed(*given: object) -> object:
        report = real(*given)
        return replace(report, findings=[replace(f, severity="info") for f in report.findings])

    monkeypatch.setattr(cmd_check, "_check", changed)
    assert check() == 0
    (project / "traincheck.toml").write_text('fail_on = "info"')
    assert check() == 1
    assert check("--fail-on", "error") == 0


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ('select = ["TC999"]', "called 'TC999'", "did you mean"),
        ('[[suppress]]\ncode = "YY"\nreason = "r"', "called 'YY'", "did you mean"),
        ('[[suppress]]\ncode = "TC201"', "has no reason", "reason ="),
        ("[rules.TC299]\nratio = 1", "[rules.TC299]", "did you mean TC2"),
        ("[rules.XX1]\nration = 1", "no option 'ration'", "did you mean 'ratio'"),
        ('[rules.XX1]\nratio = "1"', "ratio is '1'", "make it a number"),
        ("selct = []", "'selct'", "'select'"),
    ],
)
def test_a_mistake_in_it_is_bad_input(
    project: Path, check: Check, monkeypatch, capsys, text: str, what: str, fix: str
) -> None:
    monkeypatch.setattr(registry, "RULES", (*RULES, Loud()))
    (project / "traincheck.toml").write_text(text)
    assert check() == 2
    err = capsys.readouterr().err
    assert what in err
    assert fix in err
    assert "Traceback" not in err


def test_a_comment_at_the_call(project: Path, check: Check, capsys) -> None:
    source = project / "train.py"
    source.write_text(f"{source.read_text().rstrip()}  # traincheck: ignore[TC201] summed\n")
    assert check() == 0
    assert (
        "1 suppressed (1 by comment); show them with --show-suppressed" in capsys.readouterr().out
    )
    assert check("--show-suppressed") == 0
    assert "(by comment train.py:88: summed)" in " ".join(capsys.readouterr().out.split())


def test_a_baseline_is_written_and_applied(project: Path, check: Check, capsys) -> None:
    assert check("--baseline", "known.json", "--write-baseline") == 0
    out, err = capsys.readouterr()
    assert "ERROR TC201" in out
    assert "1 finding written to known.json" in err
    assert check("--baseline", "known.json") == 0
    assert "1 suppressed (1 by baseline)" in capsys.readouterr().out
    assert check("--baseline", "known.json", "--select", "TC1") == 0


def test_what_is_new_is_reported_beside_a_baseline(project: Path, check: Check, capsys) -> None:
    check("--baseline", "known.json", "--write-baseline")
    record = json.loads((project / "known.json").read_text())
    record["findings"][0]["variables"] = []
    (project / "known.json").write_text(json.dumps(record))
    assert check("--baseline", "known.json") == 1


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--baseline", "gone.json"], "--write-baseline"),
        (["--baseline", "train.py"], "damaged"),
        (["--baseline", "run/manifest.json"], "is not a baseline"),
        (["--write-baseline"], "add --baseline FILE"),
        (["--write-baseline", "--baseline", "gone/b.json"], "not a directory"),
        (["--config", "gone.toml"], "cannot be read"),
        (["--select", ","], None),
        (["--select", "TC999"], "did you mean"),
        (["--ignore", "contain,nonsense"], "'nonsense'"),
    ],
)
def test_bad_input_is_named(check: Check, capsys, words: list[str], what: str | None) -> None:
    assert check(*words) == (1 if what is None else 2)
    assert what is None or what in capsys.readouterr().err


@pytest.mark.parametrize("form", sorted(FORMATS.built_in))
def test_every_form_is_written(project: Path, check: Check, form: str) -> None:
    assert check("--format", form, "--output", "report") == 1
    text = (project / "report").read_text()
    assert "TC201" in text
    if form == "sarif":
        (result,) = json.loads(text)["runs"][0]["results"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == "train.py"
    if form == "junit":
        assert len(ET.fromstring(text).findall("testsuite/testcase/failure")) == 1


@pytest.mark.parametrize("form", sorted(set(FORMATS.built_in) - {"text"}))
def test_what_was_suppressed_is_told_beside_data(
    project: Path, check: Check, capsys, form: str
) -> None:
    (project / "traincheck.toml").write_text(ACCEPT)
    assert check("--format", form) == 0
    assert "1 suppressed (1 by configuration)" in capsys.readouterr().err
    assert check("--format", form, "--show-suppressed") == 0
    assert capsys.readouterr().err == ""


def test_json_shows_what_was_suppressed_where_asked(project: Path, check: Check, capsys) -> None:
    (project / "traincheck.toml").write_text(ACCEPT)
    check("--format", "json")
    assert "suppressed" not in json.loads(capsys.readouterr().out)
    check("--format", "json", "--show-suppressed")
    (found,) = json.loads(capsys.readouterr().out)["suppressed"]
    assert found["code"] == "TC201"
    assert found["accepted"]["reason"] == "gradients are summed on purpose"


UNUSED = """
[[suppress]]
code = "TC201"
variable = "Other.*"
reason = "it was renamed"

[[suppress]]
code = "TC101"
reason = "never so"
"""


def test_what_is_suppressed_in_vain_is_told(project: Path, check: Check, capsys) -> None:
    def said() -> str:
        return " ".join(capsys.readouterr().out.split())

    (project / "traincheck.toml").write_text(UNUSED)
    assert check() == 1
    out = said()
    assert out.count("matches nothing") == 2
    assert '[[suppress]] of TC201 (variable = "Other.*") in ' in out
    assert check("--select", "TC201") == 1  # TC101 was not asked
    assert said().count("matches nothing") == 1
    (project / "traincheck.toml").write_text(ACCEPT)
    assert check() == 0
    assert "matches nothing" not in said()


def test_following_does_not_tell_what_is_accepted(project: Path, check: Check, capsys) -> None:
    assert check("--follow") == 1
    assert "TC201 error" in capsys.readouterr().err
    check("--baseline", "known.json", "--write-baseline")
    capsys.readouterr()
    assert check("--follow", "--baseline", "known.json") == 0
    assert capsys.readouterr().err == ""
    (project / "traincheck.toml").write_text(ACCEPT)
    assert check("--follow") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "text", "has", "lacks"),
    [
        (["--rules"], "", {"TC201", "TC101"}, set()),
        (["--rules", "--select", "TC101"], "", {"TC101"}, {"TC201"}),
        (["--rules", "--ignore", "TC1"], "", {"TC201"}, {"TC101"}),
        (["--rules"], 'select = ["TC201"]', {"TC201"}, {"TC101"}),
        ([], 'select = ["TC101"]\n[collect]\nrules = true', {"TC101"}, {"TC201"}),
    ],
)
def test_only_what_selected_rules_need_is_recorded(
    project: Path, monkeypatch, words: list[str], text: str, has: set[str], lacks: set[str]
) -> None:
    from traincheck import api
    from traincheck.collect.launch import launcher

    (project / "traincheck.toml").write_text(text)
    asked: list[set[str]] = []
    real = api.chosen_rules

    def chosen(config: object) -> tuple:
        rules = real(config)
        asked.append({rule.info.code for rule in rules})
        return rules

    seen = []
    outcome = launcher.Outcome(exit_status=0, processes=1, notes=())
    monkeypatch.setattr(launcher, "launch", lambda _, settings: seen.append(settings) or outcome)
    monkeypatch.setattr(api, "chosen_rules", chosen)
    monkeypatch.setattr(sys, "argv", ["traincheck-collect", "-p", "train.py", *words])
    assert entry.collect_main() == 0
    assert has <= asked[0]
    assert not lacks & asked[0]
    expected = next(rule for rule in RULES if rule.info.code in has).needs
    assert expected | seen[0].needs == seen[0].needs


def test_selecting_no_rule_records_nothing(project: Path, monkeypatch, capsys) -> None:
    words = ["-p", "train.py", "--rules", "--ignore", "TC"]
    monkeypatch.setattr(sys, "argv", ["traincheck-collect", *words])
    assert entry.collect_main() == 2
    assert "no rule is selected" in capsys.readouterr().err


def test_a_healthy_run_stays_healthy_under_a_baseline(project: Path, monkeypatch) -> None:
    with TraceWriter(project / "good") as writer:
        for event in healthy_run(3):
            writer.emit(event)
    line = ["traincheck-check", "-t", "good", "--baseline", "b.json"]
    monkeypatch.setattr(sys, "argv", [*line, "--write-baseline"])
    assert entry.check_main() == 0
    monkeypatch.setattr(sys, "argv", line)
    assert entry.check_main() == 0
