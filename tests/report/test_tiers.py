"""Findings, observations and advice: one count in every form, and what is shown by default."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.test_golden import several, written
from traincheck.check.run_overview import RunOverview
from traincheck.live.checked import Checked, CheckNotes, tier_of
from traincheck.page.sections import verdict
from traincheck.report.run_summary import RunSummary, write_run_summary
from traincheck.rules.rarity import healthy_programs
from traincheck.rules.table import RULES
from traincheck.schema.findings import Finding, Presentation, Report, is_rare

KINDS = {
    "finding": {"severity": "error"},
    "observation": {"severity": "info", "healthy": (1, 100)},
    "advice": {"severity": "info", "healthy": None},
}


def of_tiers(*tiers: str, fail_on: str = "warning") -> Report:
    """A report with a finding of each of these tiers."""
    first = several().findings[0]
    findings = [
        replace(first, id=str(n), code=f"TC{n:03}", title=f"Title {n}", **KINDS[tier])
        for n, tier in enumerate(tiers)
    ]
    return replace(several(), findings=findings, presentation=Presentation(fail_on=fail_on))


def summary(report: Report) -> str:
    stream = io.StringIO()
    write_run_summary(
        RunSummary(report=report, watched=RunOverview(), trace="x", check="check -t x"), stream
    )
    return stream.getvalue()


@pytest.mark.parametrize(
    "tiers", [t for n in range(4) for t in itertools.combinations_with_replacement(KINDS, n)]
)
def test_each_form_counts_the_same(tiers: tuple[str, ...]) -> None:
    report = of_tiers(*tiers)
    found = {tier: tiers.count(tier) for tier in KINDS}
    assert {tier: report.tally[tier] for tier in KINDS} == found
    head = f"{found['finding']} finding" if found["finding"] else "no findings"
    forms = {form: written(form, report) for form in ("text", "markdown", "github")}
    forms |= {"run": summary(report), "page": verdict(report, None, None)["text"]}
    for form, text in forms.items():
        first = text.lower().split("\n")[-2 if form == "github" else 0]
        assert head in first, form
        for tier, word in (("observation", "observation"), ("advice", "of advice")):
            is_counted = found[tier] > 0 and not (form == "run" and tier == "advice")
            assert (word in first) is is_counted, form


def test_advice_is_one_hop_away_and_observations_none() -> None:
    report = of_tiers("finding", "observation", "advice")
    assert "advice         1 (TC002); show: check -t x --show-info" in summary(report)
    assert "advice  1 (TC002); show with --show-info" in written("text", report)
    for text in (summary(report), written("text", report)):
        assert "TC001 observation" in text
        assert "Title 2" not in text
    shown = replace(report, presentation=Presentation(info=True))
    assert "TC002 advice" in written("text", shown)


def test_advice_that_fails_a_run_is_a_finding() -> None:
    report = of_tiers("observation", "advice", fail_on="info")
    assert report.tally == {"finding": 2}
    assert report.exit_status == 1
    assert of_tiers("observation", "advice").exit_status == 0


@pytest.mark.parametrize(
    ("seen", "programs", "rare"), [(0, 9, True), (2, 100, True), (3, 100, False)]
)
def test_only_what_few_healthy_programs_have_is_an_observation(
    seen: int, programs: int, *, rare: bool
) -> None:
    assert is_rare(seen, programs) is rare
    finding: Finding = replace(several().findings[0], severity="info", healthy=(seen, programs))
    assert finding.tier == ("observation" if rare else "advice")


def test_taste_is_advice_however_rare() -> None:
    for rule in RULES:
        is_taste = rule.info.code.startswith("TC9")
        assert (healthy_programs(rule.info.code) is None) is is_taste
    for code in ("TC106", "TC109", "TC715"):
        assert is_rare(*(healthy_programs(code) or (9, 9))), code
    assert healthy_programs("contains") is None


def test_the_file_of_a_check_has_the_same_counts(tmp_path: Path) -> None:
    report = of_tiers("finding", "observation", "advice", "advice")
    notes = CheckNotes(None, tmp_path)  # type: ignore[arg-type]  # no event comes
    checked = notes._state(report, over=True)
    assert [checked.number(tier) for tier in KINDS] == [1, 1, 2]
    assert [tier_of(one) for one in checked.shown] == ["finding", "observation"]
    older = Checked(counts={"error": 1, "info": 3}, findings=[{"severity": "info"}])
    assert [older.number(tier) for tier in KINDS] == [1, 0, 3]
    assert not older.shown
