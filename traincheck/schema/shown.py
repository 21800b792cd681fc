"""Findings and reports in a line, and as HTML for notebooks. Everything from a trace is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Protocol

from traincheck.schema.events import Event
from traincheck.schema.places import where
from traincheck.schema.words import counted, joined, printable, printable_lines

_COLOURS = {"error": "#c62828", "warning": "#b26a00", "info": "#1565c0"}
_SHOWN_NAMES = 12
_LEFT = "text-align:left;vertical-align:top"
_RIGHT = "text-align:right;font-variant-numeric:tabular-nums"


class ShownFinding(Protocol):
    """The shown fields of a finding."""

    @property
    def code(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def first_step(self) -> int | None: ...
    @property
    def title(self) -> str: ...
    @property
    def expected(self) -> str: ...
    @property
    def observed(self) -> str: ...
    @property
    def likely_cause(self) -> str: ...
    @property
    def fix(self) -> str: ...
    @property
    def variables(self) -> tuple[str, ...]: ...
    @property
    def evidence(self) -> tuple[Event, ...]: ...


class ShownReport(Protocol):
    """The shown fields of a report."""

    @property
    def is_empty(self) -> bool: ...
    @property
    def steps(self) -> int: ...
    @property
    def findings(self) -> Sequence[ShownFinding]: ...
    @property
    def tally(self) -> Mapping[str, int]: ...


def finding_line(finding: ShownFinding) -> str:
    """``TC101 error at step 0: No optimizer holds Net.head.weight``."""
    step = finding.first_step
    at = "before the first step" if step is None else f"at step {step:,}"
    return printable(f"{finding.code} {finding.severity} {at}: {finding.title}")


def report_line(report: ShownReport) -> str:
    """``2 findings in 87 steps``, or that nothing was checked."""
    if report.is_empty:
        return "nothing was checked"
    return f"{tally_text(report.tally)} in {counted(report.steps, 'step')}"


def tally_text(tally: Mapping[str, int], *, advice: bool = True) -> str:
    """``2 findings, 1 observation, 3 pieces of advice``; ``no findings`` stands first."""
    return ", ".join(tally_parts(tally, advice=advice))


def tally_parts(tally: Mapping[str, int], *, advice: bool = True) -> list[str]:
    """The parts of `tally_text`."""
    found = counted(tally["finding"], "finding") if tally["finding"] else "no findings"
    others = [counted(tally["observation"], "observation")] if tally["observation"] else []
    others += [advice_text(tally["advice"])] if advice and tally["advice"] else []
    return [found, *others]


def advice_text(number: int) -> str:
    """``3 pieces of advice``."""
    return f"{counted(number, 'piece')} of advice"


def finding_html(finding: ShownFinding) -> str:
    """A heading, and a table of details and the fix."""
    colour = _COLOURS.get(finding.severity, "inherit")
    rows = "".join(
        f"<tr><th style='text-align:left'>{name}</th>"
        f"<td style='text-align:left'>{escape(printable(text))}</td></tr>"
        for name, text in _rows(finding)
    )
    head = f"<b style='color:{colour}'>{escape(finding_line(finding))}</b>"
    return f"<div>{head}<table>{rows}</table></div>"


def findings_html(findings: Iterable[ShownFinding]) -> str:
    """One after the other."""
    return "".join(map(finding_html, findings)) or "<div>no findings</div>"


def report_html(report: ShownReport) -> str:
    """The number of findings, and each of them."""
    head = f"<b>traincheck: {escape(report_line(report))}</b>"
    return f"<div>{head}{''.join(map(finding_html, report.findings))}</div>"


def _rows(finding: ShownFinding) -> Iterator[tuple[str, str]]:
    for name, text in (
        ("variables", joined(finding.variables, _SHOWN_NAMES)),
        ("expected", finding.expected),
        ("observed", finding.observed),
        ("likely cause", finding.likely_cause),
        ("fix", finding.fix),
        ("where", where(finding.evidence) or ""),
    ):
        if text:
            yield name, text


def text_html(text: str) -> str:
    """Text on one line."""
    return escape(printable(text))


def facts_html(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and texts, without the rows that have no text."""
    cells = "".join(
        f"<tr><th style='{_LEFT}'>{text_html(name)}</th>"
        f"<td style='{_LEFT};white-space:pre-line'>{escape(printable_lines(text))}</td></tr>"
        for name, text in rows
        if text
    )
    return f"<table>{cells}</table>" if cells else ""


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table: the first column is a name, the others are numbers. Cells may hold HTML of ours."""
    head = "".join(
        f"<th style='{_RIGHT if index else _LEFT}'>{text_html(name)}</th>"
        for index, name in enumerate(columns)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td style='{_RIGHT if index else _LEFT}'>{cell}</td>"
            for index, cell in enumerate(cells)
        )
        + "</tr>"
        for cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def pre_html(text: str) -> str:
    """Text of several lines, as wide as it is, in a box that scrolls."""
    style = "overflow:auto;max-height:40em;white-space:pre;line-height:1.2"
    return f"<pre style='{style}'>{escape(printable_lines(text))}</pre>"
