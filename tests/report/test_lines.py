"""Text for people: as wide as it may be, and no name is broken in two."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.text import Text

from tests.report.test_golden import several, written
from traincheck.report.lines import page, paragraph, table
from traincheck.schema.findings import Report, Verdict

NAME = "BertForSequenceClassification.bert.embeddings.token_type_embeddings.weight.and.more.of.it"


def named() -> Report:
    report = several()
    first = replace(report.findings[0], title=f"No optimizer holds {NAME}", observed=f"a b {NAME}")
    return replace(report, findings=[first, *report.findings[1:]])


def test_a_name_is_not_broken() -> None:
    text = written("text", named())
    assert text.count(NAME) == 2
    assert all(len(line) <= 80 for line in text.splitlines() if NAME not in line)


@pytest.mark.parametrize(
    ("columns", "widest"), [(None, 80), ("40", 40), ("100", 100), ("300", 110), ("wide", 80)]
)
def test_the_width_is_that_of_help(monkeypatch, columns: str | None, widest: int) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    out = io.StringIO()
    paragraph(page(out), Text("word " * 60))
    assert max(map(len, out.getvalue().splitlines())) in range(widest - 5, widest + 1)


def test_lines_go_on_below_where_they_began() -> None:
    out = io.StringIO()
    console = page(out)
    console.width = 20
    table(
        console,
        [("fix", "one two three\nfour five six seven"), ("where", "中文字 中文字 中文字")],
        2,
    )
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "  fix    one two",
        "         three",
        "         four five",
        "         six seven",
        "  where  中文字",
        "         中文字",
        "         中文字",
    ]


@pytest.mark.parametrize(
    ("severity", "healthy", "said"),
    [
        ("info", None, "0 violated, 1 advice"),
        ("info", (3, 100), "0 violated, 1 advice"),
        ("info", (2, 100), "0 violated, 1 observed"),
        ("error", (0, 100), "1 violated, 0 not triggered"),
    ],
)
def test_what_is_mild_is_not_counted_among_what_broke(
    severity: str, healthy: tuple[int, int] | None, said: str
) -> None:
    report = several()
    finding = replace(report.findings[0], severity=severity, healthy=healthy, explains=())
    verdicts = {**dict.fromkeys(report.verdicts, Verdict.HELD), finding.check: Verdict.VIOLATED}
    text = written("text", replace(report, verdicts=verdicts, findings=[finding]))
    assert f"held, {said}" in text
    assert ("show with --show-info" in text) is (said == "0 violated, 1 advice")
