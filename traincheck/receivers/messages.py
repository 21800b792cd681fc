"""The messages that receivers get: the documents of ``--format json``, and texts made from them."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traincheck.report.json_report import finding_json, report_json
from traincheck.report.registry import load_format
from traincheck.report.sentences import conclusion, lack, result
from traincheck.schema.findings import SEVERITIES, Finding, Report
from traincheck.schema.shown import finding_line
from traincheck.schema.words import printable
from traincheck.version import VERSION

_SHOWN = 10  # findings in the text of a report


@dataclass(frozen=True, slots=True, kw_only=True)
class RunName:
    """The name of a run. trace: its folder; program, host: empty if not known."""

    id: str
    trace: str = ""
    program: str = ""
    host: str = ""

    def to_json(self) -> dict[str, str]:
        """Its fields."""
        return {
            "id": self.id,
            "trace": self.trace,
            "program": self.program,
            "host": self.host,
            "traincheck": VERSION,
        }


def finding_message(
    finding: Finding, report: Report, run: RunName, counts: Mapping[str, int]
) -> dict[str, Any]:
    """A finding of a report. counts: findings that were sent so far, by severity."""
    document = finding_json(finding, report)
    return {
        "kind": "finding",
        "run": run.to_json(),
        "counts": dict(counts),
        "text": "\n".join(_lines(finding, document)),
        "finding": document,
    }


def withdrawn_message(finding: Finding, run: RunName, counts: Mapping[str, int]) -> dict[str, Any]:
    """A finding that no longer counts."""
    return {
        "kind": "withdrawn",
        "run": run.to_json(),
        "counts": dict(counts),
        "text": f"withdrawn: {finding_line(finding)}",
        "finding": {"id": finding.id, "code": finding.code, "first_step": finding.first_step},
    }


def report_message(report: Report, run: RunName, *, is_final: bool = True) -> dict[str, Any]:
    """A report; the present one of a live run has no documents of findings."""
    document, found = report_json(report), Counter(one.severity for one in report.findings)
    message = {
        "kind": "report" if is_final else "progress",
        "run": run.to_json(),
        "counts": {level: found[level] for level in SEVERITIES},
        "summary": document["summary"],
    }
    if not is_final:
        return message
    markdown = io.StringIO()
    load_format("markdown")(report, markdown)
    return {
        **message,
        "exit_status": report.exit_status,
        "conclusion": conclusion(report),
        "result": result(report),
        "text": "\n".join(_report_lines(report, document)),
        "markdown": markdown.getvalue(),
        "report": document,
    }


def _lines(finding: Finding, document: Mapping[str, Any]) -> Iterator[str]:
    yield finding_line(finding)
    place = document["where"]
    for name, text in (
        ("likely cause", finding.likely_cause),
        ("fix", finding.fix),
        ("where", f"{place['file']}:{place['line']}" if place else ""),
    ):
        if text:
            yield f"{name}: {printable(text)}"


def _report_lines(report: Report, document: Mapping[str, Any]) -> Iterator[str]:
    yield conclusion(report)
    lacking = lack(report)
    if lacking:
        yield f"fix: {printable(lacking.fix)}"
    documents: Sequence[Mapping[str, Any]] = document["findings"]
    for finding, found in zip(report.findings[:_SHOWN], documents):
        yield from _lines(finding, found)
    left = len(report.findings) - _SHOWN
    if left > 0:
        yield f"and {left:,} more"
