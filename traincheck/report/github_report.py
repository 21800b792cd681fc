"""The report as workflow commands of GitHub Actions: annotations at the lines of the source."""

from __future__ import annotations

from typing import TextIO

from traincheck.report._places import located
from traincheck.report.sentences import conclusion, lack
from traincheck.schema.findings import NOTHING_CHECKED, Report
from traincheck.schema.words import all_printable, printable

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
_IN_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTY = {**_IN_MESSAGE, ":": "%3A", ",": "%2C"}


def write_github(report: Report, stream: TextIO) -> None:
    """Write a line for each finding, and one that concludes."""
    report = all_printable(report)
    for finding in report.findings:
        place, _ = located(finding, report)
        properties = {"file": printable(place.path), "line": str(place.line)} if place else {}
        properties["title"] = f"{finding.code} {finding.title}"
        listed = ",".join(f"{name}={_escaped(v, _IN_PROPERTY)}" for name, v in properties.items())
        fix = f"Fix: {finding.fix}" if finding.fix else ""
        said = _escaped("\n".join(filter(None, (finding.message, fix))), _IN_MESSAGE)
        stream.write(f"::{_COMMANDS[finding.severity]} {listed}::{said}\n")
    lacking = lack(report)
    if lacking and report.exit_status == NOTHING_CHECKED:
        title = _escaped(lacking.reason, _IN_PROPERTY)
        stream.write(f"::error title={title}::{_escaped(f'Fix: {lacking.fix}', _IN_MESSAGE)}\n")
    stream.write(f"{conclusion(report)}\n")


def _escaped(text: str, codes: dict[str, str]) -> str:
    return "".join(codes.get(letter, letter) for letter in text)
