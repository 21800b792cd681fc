"""The report as SARIF 2.1.0, for code scanning: results at lines of the source, rules with help.

The rules are those with results; with ``verbose``, all rules that were checked.
Suppressed findings are included and marked as suppressed, as the format requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

import orjson

from traincheck.report._places import located
from traincheck.report.sentences import lack, notes_of
from traincheck.rules.docs import RuleDocs, docs_of
from traincheck.rules.registry import all_rules
from traincheck.schema.files import dump_json
from traincheck.schema.findings import NOTHING_CHECKED, CheckInfo, Finding, Report, Verdict
from traincheck.schema.words import printable_json
from traincheck.version import VERSION

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_FINGERPRINT = "traincheck/v1"


def write_sarif(report: Report, stream: TextIO) -> None:
    """Write one JSON document, indented, with a newline at its end."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    stream.write(printable_json(dump_json(sarif(report), option=options).decode()))


def sarif(report: Report) -> dict[str, Any]:
    """The report as a SARIF log of one run."""
    findings = [*report.findings, *report.suppressed]
    found = {finding.code for finding in findings}
    shown = [i for i in report.infos.values() if i.code in found or report.presentation.verbose]
    descriptors = _descriptors(shown, findings)
    index = {descriptor["id"]: number for number, descriptor in enumerate(descriptors)}
    run = {
        "tool": {
            "driver": {
                "name": "traincheck",
                "version": VERSION,
                "rules": descriptors,
            }
        },
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": level, "message": {"text": text}}
                    for level, text in _notifications(report)
                ],
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, index[finding.code], report) for finding in findings],
        "properties": {
            "events": report.events,
            "steps": report.steps,
            "checkedSteps": report.checked_steps,
            "ranks": report.ranks,
            **{verdict.value: report.count(verdict) for verdict in Verdict},
        },
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _notifications(report: Report) -> Iterator[tuple[str, str]]:
    """Notes on the run, by level."""
    lacking = lack(report)
    if lacking:
        level = "error" if report.exit_status == NOTHING_CHECKED else "note"
        yield level, f"{lacking.reason}. Fix: {lacking.fix}"
    for note in notes_of(report):
        yield "note", note


def _descriptors(infos: Iterable[CheckInfo], findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Every rule and relation that found something, by code, and all rules of ``infos``."""
    docs = {rule.info.code: docs_of(rule) for rule in all_rules()}
    checked = {info.code: info.severity for info in infos if info.kind == "rule"}
    for finding in findings:
        checked.setdefault(finding.code, finding.severity)
    return [_descriptor(code, checked[code], docs.get(code)) for code in sorted(checked)]


def _descriptor(code: str, severity: str, docs: RuleDocs | None) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": code,
        "defaultConfiguration": {"level": _LEVELS[severity]},
    }
    if docs is None:  # a relation: its text depends on the invariant
        text = f"An invariant of the relation {code!r}, learned from reference runs, does not hold."
        return {**described, "shortDescription": {"text": text}}
    why = docs.sections.get("Why it matters", "")
    markdown = "\n\n".join(f"**{name}**\n\n{text}" for name, text in docs.sections.items())
    return {
        **described,
        "name": docs.name or code,
        "shortDescription": {"text": docs.summary},
        "fullDescription": {"text": why or docs.summary},
        "help": {"text": docs.text, "markdown": markdown or docs.text},
        "properties": {"tags": [docs.theme]},
    }


def _result(finding: Finding, number: int, report: Report) -> dict[str, Any]:
    parts = [f"{finding.title}.", finding.message]
    if finding.likely_cause:
        parts.append(f"Likely cause: {finding.likely_cause}")
    if finding.fix:
        parts.append(f"Fix: {finding.fix}")
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": number,
        "level": _LEVELS[finding.severity],
        "kind": "fail",
        "message": {"text": " ".join(parts)},
        "locations": [_location(finding, report)],
        "partialFingerprints": {_FINGERPRINT: finding.id},
        "properties": {
            "check": finding.check,
            "firstStep": finding.first_step,
            "lastStep": finding.last_step,
            "trainingRank": finding.rank,
            "stage": finding.stage,
            "violations": finding.violations,
            "variables": list(finding.variables),
            "alsoBroke": [also.check for also in finding.also],
        },
    }
    accepted = finding.suppressed
    if accepted is not None:
        kind = "inSource" if accepted.by == "comment" else "external"
        suppression = {"kind": kind, "status": "accepted"}
        if accepted.reason:
            suppression["justification"] = accepted.reason
        result["suppressions"] = [suppression]
    return result


def _location(finding: Finding, report: Report) -> dict[str, Any]:
    """The line, where there is one, and the things of the program that the finding names."""
    location: dict[str, Any] = {}
    place, code = located(finding, report)
    if place is not None:
        path = Path(place.path)
        uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
        location["physicalLocation"] = {
            "artifactLocation": {"uri": uri},
            "region": {
                "startLine": max(place.line, 1),
                **({"snippet": {"text": code}} if code else {}),
            },
        }
    subject = finding.subject
    named = [
        {"fullyQualifiedName": name, "kind": kind}
        for kind, names in (
            ("variable", finding.variables or [subject.variable]),
            ("module", [subject.module]),
            ("function", [subject.api]),
        )
        for name in names
        if name
    ]
    if named:
        location["logicalLocations"] = named
    return location
