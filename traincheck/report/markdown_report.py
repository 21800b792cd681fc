"""The report as Markdown: for the summary of a workflow, a merge request, or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TextIO

from traincheck.report._places import located
from traincheck.report.sentences import conclusion, lack, notes_of, why_accepted
from traincheck.report.text_report import finding_rows, kind_of, verdict_counts
from traincheck.schema.claims import Row
from traincheck.schema.findings import Finding, Report
from traincheck.schema.words import all_printable, counted, printable

_LISTED = 100  # findings in the table; GitHub takes a megabyte of summary
_IN_FULL = 20
_MARKS = re.compile(r"([\\`*\[\]|~$#]|(?<![^\W_])_|_(?![^\W_]))")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_TICKS = re.compile(r"`+")


def write_markdown(report: Report, stream: TextIO) -> None:
    """Write the conclusion, a table of findings, each finding with its fix, and the numbers."""
    report = all_printable(report)
    stream.writelines(f"{line}\n" for line in _lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield f"## {_text(conclusion(report))}"
    lacking = lack(report)
    if lacking:
        yield from ("", f"**Fix**: {_text(lacking.fix)}")
    if report.findings:
        yield from _table(report)
    for number, finding in enumerate(report.findings[:_IN_FULL]):
        yield from _finding(finding, report, is_open=not number)
    if report.presentation.suppressed and report.suppressed:
        yield from ("", "Suppressed:", "")
        for accepted in report.suppressed:
            said = f"{accepted.code} {accepted.severity}: {accepted.title}"
            yield f"- {_text(f'{said} ({why_accepted(accepted)})')}"
    parts = (
        counted(report.events, "event"),
        counted(report.steps, "step"),
        counted(report.ranks, "rank"),
    )
    yield from ("", f"- run: {', '.join(parts)}")
    counts = verdict_counts(report).items()
    yield f"- checks: {', '.join(f'{number:,} {word}' for word, number in counts)}"
    for note in notes_of(report):
        yield f"- note: {_text(note)}"


def _table(report: Report) -> Iterator[str]:
    yield from ("", "| step | check | finding | where |", "|---:|---|---|---|")
    for finding in report.findings[:_LISTED]:
        place, _ = located(finding, report)
        where = _code(f"{place.path}:{place.line}", in_table=True) if place else ""
        step = "-" if finding.first_step is None else f"{finding.first_step:,}"
        head = f"**{_text(finding.code)}** {kind_of(finding)}"
        yield f"| {step} | {head} | {_text(finding.title)} | {where} |"
    left = len(report.findings) - _LISTED
    if left > 0:
        yield from ("", f"and {left:,} more")


def _finding(finding: Finding, report: Report, *, is_open: bool) -> Iterator[str]:
    """The details of a finding, which a reader opens. The first one is open."""
    title = f"{finding.code} {kind_of(finding)}: {finding.title}"
    yield from ("", f"<details{' open' if is_open else ''}>")
    yield from (f"<summary><b>{printable(title).translate(_ENTITIES)}</b></summary>", "")
    for name, text in finding_rows(finding, report):
        yield f"- **{name}**: {_text(text)}"
    place, code = located(finding, report)
    if place is not None:
        yield f"- **where**: {_code(f'{place.path}:{place.line}')}"
    if code:
        yield from _fence([printable(code)], "python")
    if finding.comparison:
        left, right = finding.compared
        yield from ("", f"{_text(left)} (-) and {_text(right)} (+):")
        yield from _fence(list(_differences(finding.comparison)), "diff")
    yield from ("", "</details>")


def _differences(rows: Sequence[Row]) -> Iterator[str]:
    """Both sides in one column, as a diff."""
    for row in rows:
        if row.mark == " ":
            yield f"  {row.reference}"
            continue
        if row.reference is not None:
            yield f"- {row.reference}"
        if row.observed is not None:
            yield f"+ {row.observed}"


def _text(text: str) -> str:
    """Text without a meaning in Markdown or HTML."""
    return _MARKS.sub(r"\\\1", printable(text).translate(_ENTITIES))


def _code(text: str, *, in_table: bool = False) -> str:
    """Text as code, between more backticks than it has in a row."""
    text = printable(text)
    text = text.replace("|", "\\|") if in_table else text
    ticks = "`" * (1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _fence(lines: Sequence[str], language: str) -> Iterator[str]:
    most = max((len(run) for line in lines for run in _TICKS.findall(line)), default=0)
    fence = "`" * max(3, most + 1)
    yield from ("", f"{fence}{language}", *lines, fence)
