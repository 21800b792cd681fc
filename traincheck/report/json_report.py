"""The report as JSON. The keys that other programs rely on come first.

``exit_status`` is that of the command; ``nothing_checked`` is null, or says why too little was
checked, and what to do. ``notes`` holds what the text report notes, ``suspect_checkpoints`` the
checkpoints that were written in or after the first step of an error, ``not_observable`` why checks
could not be decided; ``suppressed`` holds, where asked for, suppressed findings and by whom.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TextIO

import orjson

from traincheck.check.run_overview import suspects
from traincheck.report._beside import excerpt_json
from traincheck.report._places import located
from traincheck.report.sentences import lack, notes_of
from traincheck.schema.codec import placed
from traincheck.schema.files import dump_json
from traincheck.schema.findings import TIERS, Finding, Report, Verdict
from traincheck.schema.layout import SCHEMA_VERSION
from traincheck.schema.places import where
from traincheck.schema.words import printable_json


def write_json(report: Report, stream: TextIO) -> None:
    """Write one JSON document, indented, with a newline at its end."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    stream.write(printable_json(dump_json(report_json(report), option=options).decode()))


def report_json(report: Report) -> dict[str, Any]:
    """The report as JSON values."""
    findings = [finding_json(finding, report) for finding in report.findings]
    lacking, codes = lack(report), {check: info.code for check, info in report.infos.items()}
    told = {
        "schema_version": SCHEMA_VERSION,
        "summary": {
            "events": report.events,
            "steps": report.steps,
            "checked_steps": report.checked_steps,
            "ranks": report.ranks,
            **{verdict.value: report.count(verdict) for verdict in Verdict},
        },
        "first_violation": findings[0] if findings else None,
        "findings": findings,
        "exit_status": report.exit_status,
        "tally": {tier: report.tally[tier] for tier in TIERS},
        "nothing_checked": asdict(lacking) if lacking else None,
        "notes": notes_of(report),
        "suspect_checkpoints": [asdict(save) for save in suspects(report)],
        "not_observable": [
            {"check": check, "code": codes.get(check), "reason": reason}
            for check, reason in sorted(report.unobservable.items())
        ],
    }
    if report.presentation.suppressed:
        told["suppressed"] = [
            {
                **finding_json(finding, report),
                "accepted": asdict(finding.suppressed) if finding.suppressed else None,
            }
            for finding in report.suppressed
        ]
    return told


def finding_json(finding: Finding, report: Report) -> dict[str, Any]:
    """One finding of a report as JSON values.

    Its evidence is in the form of trace lines, with the rank and stream that name the file.
    """
    subject, (place, code) = finding.subject, located(finding, report)
    found_by = "trace" if where(finding.evidence) else "name"
    return {
        "id": finding.id,
        "check": finding.check,
        "kind": finding.kind,
        "code": finding.code,
        "severity": finding.severity,
        "title": finding.title,
        "message": finding.message,
        "step": finding.step,
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "rank": finding.rank,
        "stage": finding.stage,
        "violations": finding.violations,
        "subject": {
            "api": subject.api,
            "variable": subject.variable,
            "module": subject.module,
        },
        "expected": finding.expected,
        "observed": finding.observed,
        "evidence": [placed(event) for event in finding.evidence],
        "likely_cause": finding.likely_cause,
        "fix": finding.fix,
        "tier": report.presentation.tier(finding),
        "healthy_programs": list(finding.healthy) if finding.healthy else None,
        "variables": list(finding.variables),
        "topic": finding.topic.value if finding.topic else None,
        "where": None
        if place is None
        else {"file": place.path, "line": place.line, "code": code, "found_by": found_by},
        "excerpt": excerpt_json(finding.comparison, finding.compared),
        "also_broke": [asdict(also) for also in finding.also],
    }
