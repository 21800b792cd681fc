"""A failure in what is only added to a finding never drops the finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import MLP, TraceBuilder
from traincheck.check import engine as engine_module
from traincheck.check import finding_builder as findings_module
from traincheck.check.engine import Engine
from traincheck.check.finding_builder import Suppress
from traincheck.check.suppression.policy import SuppressionPolicy
from traincheck.check.suppression.source_files import SourceFiles, comments_of, lines_calling
from traincheck.report import _places
from traincheck.rules.registry import all_rules
from traincheck.schema.findings import Report

RULES = [rule for rule in all_rules() if rule.info.code == "TC201"]
EVENTS = TraceBuilder().process().model("Net", MLP).optimizer().steps(4, omit={"zero_grad"}).build()
DEEP = "x = " + " + ".join(["1"] * 60_000) + "\n"


def checked(accept: Suppress | None = None) -> Report:
    engine = Engine(rules=RULES, suppress=accept)
    for event in EVENTS:
        engine.observe(event)
    return engine.finish()


def fails(*_: object, **__: object) -> None:
    raise RecursionError("too deep")


def test_nothing_is_noted_where_nothing_fails() -> None:
    report = checked(SuppressionPolicy())
    assert [finding.code for finding in report.findings] == ["TC201"]
    assert not any("failed" in note for note in report.notes)


def test_a_finding_stays_when_looking_for_its_suppression_fails() -> None:
    report = checked(fails)
    assert [finding.code for finding in report.findings] == ["TC201"]
    assert report.verdicts[RULES[0].info.check_id].value == "violated"
    assert any("suppressions of TC201 failed with RecursionError" in note for note in report.notes)


@pytest.mark.parametrize("name", ["group_by_cause", "_finding", "_also"])
def test_a_finding_stays_when_its_words_or_group_fail(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings_module, name, fails)
    report = checked()
    assert {finding.code for finding in report.findings} == {"TC201"}
    assert any("failed with RecursionError: too deep" in note for note in report.notes)


@pytest.mark.parametrize("name", ["on_violation", "compare", "compare_ranks", "source_event"])
def test_a_finding_stays_when_the_comparison_fails(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module.ViolationContext, name, fails)
    report = checked()
    assert [finding.code for finding in report.findings] == ["TC201"]
    assert any("failed with RecursionError" in note for note in report.notes)


def test_a_finding_has_no_line_when_the_search_for_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = checked()
    monkeypatch.setattr(_places, "place_of", fails)
    assert _places.located(report.findings[0], report) == (None, "")


@pytest.mark.parametrize(
    "read",
    [lambda source: lines_calling("torch.f", source), comments_of],
    ids=["calls", "comments"],
)
def test_source_that_python_cannot_take_is_no_source(read: Callable[[str], object]) -> None:
    assert not read(f"{DEEP}f()  # traincheck: what it says\n")


def test_a_comment_counts_for_its_line_where_python_cannot_take_the_source() -> None:
    assert comments_of(f"{DEEP}f()  # traincheck: ignore[TC1]\n")[2].codes == ("TC1",)


def test_a_finding_stays_when_its_source_cannot_be_parsed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{DEEP}# traincheck: ignore[TC9]\n")
    report = checked(SuppressionPolicy(sources=SourceFiles(lambda: str(tmp_path), [tmp_path])))
    assert [finding.code for finding in report.findings] == ["TC201"]
