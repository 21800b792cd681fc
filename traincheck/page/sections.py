"""The parts of a page as plain objects for its templates."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traincheck.page.timeline import Timeline
from traincheck.profile.table import TableOptions, cells_of, footer, headline
from traincheck.report.difference.lines import headline as difference_headline
from traincheck.report.difference.lines import labels, resumed, rows
from traincheck.report.sentences import lack, result
from traincheck.schema.findings import Report

if TYPE_CHECKING:
    from traincheck.diff.difference import Difference
    from traincheck.profile.numbers import Profile
    from traincheck.store.manifest import Manifest

_LEVELS = ("error", "warning", "info")
_MOST_LAYERS = 300  # rows of a profile
_NO_VERDICT = ("events", "steps", "checked_steps", "ranks")  # of the summary
_MOMENT = re.compile(r"(\d+-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d|)")
_VERSIONS = ("traincheck", "python", "torch")
Facts = list[tuple[str, str]]


def verdict(
    report: Report | None, difference: Difference | None, profile: Profile | None
) -> dict[str, str]:
    """The result in one line, its level, and what to do if too little was checked."""
    if report is not None:
        severities = {finding.severity for finding in report.findings}
        level = next((one for one in _LEVELS if one in severities), "")
        if level in ("", "info"):
            level = "warning" if lack(report) or report.is_partial else "good"
        lacking = lack(report)
        fix = lacking.fix if lacking else ""
        return {"level": level, "text": result(report), "fix": fix}
    if difference is not None:
        level = "good" if difference.same else "error" if difference.first else "warning"
        return {"level": level, "text": difference_headline(difference), "fix": ""}
    return {"level": "", "text": headline(profile) if profile else "", "fix": ""}


def title(report: Report | None, run: str, difference: Difference | None = None) -> str:
    """Both runs that are compared, or the program, or the run."""
    if difference is not None:
        return " and ".join(labels(difference))
    return (report.program if report is not None else None) or run or "a training run"


def environment(report: Report | None, manifest: Manifest | None, timeline: Timeline) -> Facts:
    """The run in short facts; those that are not known are left out."""
    taken, recorded = (
        max(each.values(), default=0) for each in (timeline.steps, timeline.recorded)
    )
    if report is not None:
        taken, recorded = report.steps, report.checked_steps
    facts = [
        ("steps", f"{taken:,}, {recorded:,} of them recorded" if taken else ""),
        ("ranks", str(len(timeline.ranks) or "")),
        ("events", f"{report.events:,}" if report is not None else ""),
        ("optimizers", ", ".join(f"{o} {c}" for o, c in timeline.optimizers.items())),
    ]
    made: Mapping[str, Any] = timeline.versions
    if manifest is not None:
        made = {**made, **manifest.created_with}
        facts += [
            ("command", " ".join(manifest.command)),
            ("started", _moment(manifest.started or "")),
            ("ended", _end(manifest)),
            ("machine", " ".join(str(made[k]) for k in ("hostname", "platform") if k in made)),
        ]
    facts.append(("versions", ", ".join(f"{k} {made[k]}" for k in _VERSIONS if k in made)))
    return [(name, value) for name, value in facts if value]


def _end(manifest: Manifest) -> str:
    if manifest.ended is None:
        return "not known to have ended"
    status = manifest.signal or f"exit status {manifest.exit_status}"
    return f"{_moment(manifest.ended)}, {status}"


def _moment(text: str) -> str:
    """A moment for people: ``2026-11-27T16:33:14.042+00:00`` without fractions of a second."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return text
    zone = "UTC" if found[3] in ("Z", "+00:00") else found[3]
    return f"{found[1]} {found[2]} {zone}".rstrip()


def difference_section(difference: Difference | None) -> dict[str, Any] | None:
    """The result of `traincheck diff` in named rows; None if runs were not compared."""
    if difference is None:
        return None
    a, b = labels(difference)
    return {
        "a": a,
        "b": b,
        "headline": difference_headline(difference),
        "level": "good" if difference.same else "error" if difference.first else "warning",
        "resumed": resumed(difference),
        "rows": [row for row in rows(difference) if row[0] != "environment"],
        "environment": [(e.name, e.a, e.b) for e in difference.environment],
    }


def layers_section(profile: Profile | None) -> dict[str, Any] | None:
    """The layers of a profiled step; None if there is none."""
    if profile is None:
        return None
    titles, *found = cells_of(profile, TableOptions(depth=None))
    return {
        "about": headline(profile),
        "columns": titles,
        "rows": found[:_MOST_LAYERS],
        "left_out": max(len(found) - _MOST_LAYERS, 0),
        "notes": list(footer(profile)),
    }


def ranks_section(report: Report | None, timeline: Timeline) -> list[dict[str, Any]]:
    """The ranks with their steps and findings."""
    found: dict[int, list[str]] = defaultdict(list)
    for finding in report.findings if report is not None else ():
        found[finding.rank].append(finding.code)
    return [
        {"rank": rank, "steps": timeline.steps[rank], "findings": found[rank]}
        for rank in sorted(timeline.ranks)
    ]


def observed_section(told: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The counts of checks, and why some could not be decided; None without a report.

    Args:
        told: the report as JSON.
    """
    if told is None:
        return None
    reasons: dict[str, set[str]] = defaultdict(set)
    for entry in told["not_observable"]:
        reasons[entry["reason"]].add(entry["code"] or entry["check"])
    counts = {name: n for name, n in told["summary"].items() if name not in _NO_VERDICT}
    listed = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items())
    return {
        "text": f"Of {sum(counts.values()):,} checks: {listed}.",
        "notes": list(told["notes"]),
        "reasons": [(reason, sorted(codes)) for reason, codes in sorted(reasons.items())],
        "undecided": len(told["not_observable"]),
    }
