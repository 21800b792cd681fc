"""The Markdown form, as a parser reads it: every text of a finding is text, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest
from markdown_it import MarkdownIt

from tests.report.test_golden import REPORTS, beside, long_path, several, written
from traincheck.schema.findings import Report

HOSTILE = (
    "<script>alert(1)</script>",
    "</summary></details><h1>x",
    "![x](http://evil/x.png)",
    "[x](http://evil)",
    "<http://evil.example>",
    "a | b || c",
    "`` ` ``` code",
    "**bold** _it_ __init__ *x*",
    "# heading",
    "- item",
    "1. one",
    "$x^2$ ~~gone~~",
    "&lt;b&gt; &amp;",
    "\\| \\` \\<b>",
    "a\nb\n\n# c",
)


def html(report: Report) -> str:
    return MarkdownIt("commonmark").enable("table").render(written("markdown", report))


def shown(text: str) -> str:
    """The characters that a reader sees."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", text)).split())


def named(name: str) -> Report:
    report = several()
    texts = dict.fromkeys(("title", "message", "fix", "likely_cause", "observed"), name)
    findings = [replace(one, **texts) for one in report.findings]
    return replace(report, findings=findings, notes=(name,))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text(name: str) -> None:
    found, plain = html(named(name)), html(named("plain"))
    tags = re.findall(r"</?[a-z0-9]+", found)
    assert tags == re.findall(r"</?[a-z0-9]+", plain)
    # Line breaks are escaped as in every report.
    assert shown(found).count(" ".join(name.replace("\n", "\\n").split())) >= 9


def test_a_table_of_findings_and_the_details_of_each() -> None:
    found = html(several())
    assert found.count("<tr>") == 1 + len(several().findings)
    assert "<code>train.py:88</code>" in found
    text = written("markdown", several())
    assert text.count("<details open>") == 1
    assert text.count("<details") == text.count("</details>") == len(several().findings)


def test_a_comparison_is_a_diff() -> None:
    text = written("markdown", beside())
    block = text.partition("```diff\n")[2].partition("```")[0].splitlines()
    assert block[:3] == ["- Adam.zero_grad", "- Net.forward", "+ Net.forward (in evaluation mode)"]
    assert "  backward" in block


def test_a_path_is_code() -> None:
    (place,) = {e.where for e in long_path().findings[0].evidence if getattr(e, "where", None)}
    assert f"<code>{place}</code>" in html(long_path())


def test_a_thousand_findings_stay_below_the_limit_of_a_summary() -> None:
    first = several().findings[0]
    many = [replace(first, id=str(n), title=f"title {n} {'x' * 200}") for n in range(1000)]
    text = written("markdown", replace(several(), findings=many))
    assert len(text.encode()) < 1 << 20
    assert "and 900 more" in text
    assert text.count("<details") == 20


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_the_first_line_is_the_conclusion(name: str) -> None:
    assert written("markdown", REPORTS[name]()).startswith("## traincheck: ")
