"""The page of a run: read it once, with the check engine beside it, and render."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from traincheck.api import conclude
from traincheck.check.engine import Engine
from traincheck.metrics.series import Metrics
from traincheck.metrics.trace import read_run
from traincheck.page.course import Course
from traincheck.page.data import numbers_of
from traincheck.page.inspector import Inspector
from traincheck.page.render import render
from traincheck.report.difference.text import write_text
from traincheck.report.json_report import report_json
from traincheck.report.sentences import conclusion
from traincheck.schema.events import Event
from traincheck.schema.findings import Report
from traincheck.store.reader import TraceReader
from traincheck.version import VERSION

if TYPE_CHECKING:
    from traincheck.diff.difference import Difference
    from traincheck.store.manifest import Manifest

_MOST_LISTED = 60  # marks that are listed as text
# Metrics that are drawn by layer: kind of tensor and statistic -> name of the map.
_DRAWN = {
    ("activation", "rms"): "activation rms",
    ("update", "ratio"): "update over parameter",
    ("gradient", "norm"): "gradient norm by variable",
    ("activation_difference", "rms"): "rms of the difference to the reference",
}
_LEVELS = ("error", "warning", "info")


class Watcher:
    """Takes in the events of a run for its page.

    Attributes:
        course: over the steps. inspector: of a few steps.
    """

    def __init__(self) -> None:
        self.course = Course()
        self.inspector = Inspector()

    def feed(self, engine: Engine, events: Iterable[Event]) -> None:
        """Feed the events to the engine and to the page, in one pass."""
        observe, course, inspector = engine.observe, self.course.add, self.inspector.add
        for event in events:
            if observe(event):
                self.inspector.dispute(event.rank)
            course(event)
            inspector(event)


def page_of_run(engine: Engine, reader: TraceReader, **more: Any) -> tuple[str, Report]:
    """The page of a recorded run, and the report that it shows.

    Args:
        engine: of the checks; takes in the events.
        reader: of the run.
        more: see `page`.

    Raises:
        TraceFormatError: the run cannot be read.
    """
    watcher = Watcher()
    watcher.feed(engine, reader.events())
    report = conclude(engine, reader)
    if reader.manifest is not None and reader.manifest.settings.get("monitor"):
        add_metrics(watcher.course, read_run(reader))
    made = page(report, watcher, manifest=reader.manifest, run=str(reader.path), **more)
    return made, report


def add_metrics(course: Course, metrics: Metrics) -> None:
    """Enter the numbers of `traincheck monitor` that are drawn by layer."""
    for key, values in metrics.items():
        subject, _, rest = key.partition("/")
        layer, _, statistic = rest.rpartition("/")
        name = _DRAWN.get((subject, statistic))
        for step, value in values.items() if name is not None else ():
            course.layer(name or "", layer, 0, step, abs(value))


def page(
    report: Report,
    watcher: Watcher,
    *,
    manifest: Manifest | None = None,
    run: str = "",
    difference: Difference | None = None,
    layers: Mapping[str, Any] | None = None,
) -> str:
    """The HTML of a page.

    Args:
        report: the findings.
        watcher: that has taken in the events of the run.
        manifest: of the run.
        run: its directory.
        difference: to another run.
        layers: of a profile: ``about``, ``columns`` and ``rows`` of text.
    """
    told = report_json(report)
    first = difference.first.step if difference is not None and difference.first else None
    data = numbers_of(watcher.course, report.findings, first)
    context = {
        "title": _title(report, manifest),
        "verdict": _verdict(report),
        "environment": _environment(report, manifest, watcher.course),
        "findings": told["findings"],
        "difference": _difference(difference),
        "marks": data["marks"][:_MOST_LISTED],
        "has_maps": bool(data["maps"]),
        "inspected": [asdict(step) for step in watcher.inspector.steps],
        "layers": layers,
        "ranks": _ranks(report, watcher.course),
        "observed": _observed(told, report),
        "version": VERSION,
        "run": run,
    }
    return render(context, data)


def _title(report: Report, manifest: Manifest | None) -> str:
    if report.program:
        return report.program
    return manifest.run_id if manifest is not None and manifest.run_id else "a training run"


def _verdict(report: Report) -> dict[str, str]:
    severities = {finding.severity for finding in report.findings}
    level = next((one for one in _LEVELS if one in severities), "")
    if level in ("", "info"):
        level = "warning" if report.is_empty or report.is_partial else "good"
    return {"level": level, "text": conclusion(report).removeprefix("traincheck: ")}


def _environment(
    report: Report, manifest: Manifest | None, course: Course
) -> list[tuple[str, str]]:
    rows = [
        ("steps", f"{report.steps:,}, {report.checked_steps:,} of them recorded"),
        ("ranks", str(report.ranks)),
        ("events", f"{report.events:,}"),
        ("optimizers", ", ".join(f"{o} {c}" for o, c in course.optimizers.items())),
    ]
    if manifest is not None:
        made = manifest.created_with
        rows += [
            ("command", " ".join(manifest.command)),
            ("started", manifest.started or ""),
            ("ended", _end(manifest)),
            ("machine", " ".join(str(made[k]) for k in ("hostname", "platform") if k in made)),
            ("versions", " ".join(f"{k} {made[k]}" for k in ("traincheck", "python") if k in made)),
        ]
    return [(name, value) for name, value in rows if value]


def _end(manifest: Manifest) -> str:
    if manifest.ended is None:
        return "not known to have ended"
    status = manifest.signal or f"exit status {manifest.exit_status}"
    return f"{manifest.ended}, {status}"


def _difference(difference: Difference | None) -> dict[str, str] | None:
    if difference is None:
        return None
    text = io.StringIO()
    write_text(difference, text)
    return {"a": difference.a, "b": difference.b, "text": text.getvalue().rstrip()}


def _ranks(report: Report, course: Course) -> list[dict[str, Any]]:
    found: dict[int, list[str]] = defaultdict(list)
    for finding in report.findings:
        found[finding.rank].append(finding.code)
    return [
        {"rank": rank, "steps": course.steps[rank], "findings": found[rank]}
        for rank in sorted(course.ranks)
    ]


def _observed(told: Mapping[str, Any], report: Report) -> dict[str, Any]:
    reasons: dict[str, set[str]] = defaultdict(set)
    for entry in told["not_observable"]:
        reasons[entry["reason"]].add(entry["code"] or entry["check"])
    summary = told["summary"]
    counts = [f"{n:,} {name.replace('_', ' ')}" for name, n in summary.items() if _is_verdict(name)]
    ordered: list[tuple[str, Sequence[str]]] = sorted((r, sorted(c)) for r, c in reasons.items())
    return {
        "text": f"Of {len(report.verdicts):,} checks: {', '.join(counts)}.",
        "notes": list(told["notes"]),
        "reasons": ordered,
        "undecided": len(told["not_observable"]),
    }


def _is_verdict(name: str) -> bool:
    return name not in ("events", "steps", "checked_steps", "ranks")
