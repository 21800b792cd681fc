"""A baseline takes known findings out, keeps their count, and refuses what is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checking import net, report_of
from traincheck.check.suppression.policy import read_baseline, write_baseline
from traincheck.errors import BaselineError, OutputError
from traincheck.schema.findings import Report


@pytest.fixture
def report() -> Report:
    return report_of(net().steps(4, omit={"zero_grad"}).build())


def test_a_known_finding_is_suppressed(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    assert write_baseline(path, report.findings) == 1
    applied = read_baseline(path).apply(report)
    assert applied.findings == []
    (found,) = applied.suppressed
    assert (found.suppressed.by, found.suppressed.where) == ("baseline", str(path))
    assert applied.verdicts == report.verdicts


def test_the_step_does_not_matter(report: Report, tmp_path: Path) -> None:
    write_baseline(tmp_path / "b", report.findings)
    later = report_of(net().steps(3).steps(4, omit={"zero_grad"}).build())
    assert later.findings[0].first_step != report.findings[0].first_step
    assert later.findings[0].id == report.findings[0].id
    assert read_baseline(tmp_path / "b").apply(later).findings == []


def test_a_variable_that_is_new_makes_it_new(report: Report, tmp_path: Path) -> None:
    (finding,) = report.findings
    write_baseline(tmp_path / "b", [finding])
    baseline = read_baseline(tmp_path / "b")
    assert baseline.contains(replace(finding, variables=finding.variables[:1]))
    assert not baseline.contains(replace(finding, variables=(*finding.variables, "Net.new")))
    assert not baseline.contains(replace(finding, id="another"))


def test_findings_of_one_subject_are_one_entry(report: Report, tmp_path: Path) -> None:
    (finding,) = report.findings
    twice = [replace(finding, variables=("a",)), replace(finding, variables=("b",))]
    assert write_baseline(tmp_path / "b", twice) == 1
    assert read_baseline(tmp_path / "b").contains(replace(finding, variables=("a", "b")))


def test_what_was_suppressed_before_stays(report: Report, tmp_path: Path) -> None:
    write_baseline(tmp_path / "b", report.findings)
    earlier = replace(report, suppressed=report.findings)
    assert len(read_baseline(tmp_path / "b").apply(earlier).suppressed) == 2


GOOD = {"kind": "traincheck-baseline", "schema_version": 1, "findings": []}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "does not exist"),
        ("", "damaged"),
        ("{", "damaged"),
        ("[]", "is not a baseline"),
        ('{"findings": []}', "is not a baseline"),
        (json.dumps({**GOOD, "schema_version": 2}), "written by schema 2, this is 1"),
        (
            json.dumps({**GOOD, "findings": None}),
            r"Expected `array`, got `null` - at `\$.findings`",
        ),
        (json.dumps({**GOOD, "findings": [{"fingerprint": "x"}]}), "required field `check`"),
        (json.dumps({**GOOD, "findings": [{"variables": []}]}), "required field `fingerprint`"),
        (
            json.dumps({**GOOD, "findings": [{"fingerprint": "x", "variables": []}]}),
            "required field `check`",
        ),
        (
            json.dumps(
                {**GOOD, "findings": [{"fingerprint": "x", "check": "y", "variables": [1]}]}
            ),
            r"Expected `str`, got `int` - at `\$.findings\[0\].variables",
        ),
    ],
)
def test_what_is_no_baseline_is_named(tmp_path: Path, content: str | None, what: str) -> None:
    path = tmp_path / "b.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BaselineError, match=what) as caught:
        read_baseline(path)
    assert str(path) in caught.value.message
    assert "--write-baseline" in str(caught.value.fix)
    assert caught.value.exit_code == 2


def test_a_directory_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="cannot be read"):
        read_baseline(tmp_path)


def test_a_baseline_that_is_a_link_stays_one(report: Report, tmp_path: Path) -> None:
    kept, link = tmp_path / "kept.json", tmp_path / "link.json"
    link.symlink_to(kept)
    assert write_baseline(link, report.findings) == len(report.findings)
    assert link.is_symlink()
    assert read_baseline(kept).known == read_baseline(link).known
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.json", "link.json"]


def test_a_baseline_that_cannot_be_written(report: Report, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_baseline(tmp_path / "gone" / "b.json", report.findings)
