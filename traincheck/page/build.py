"""The page of a run, of a difference or of a profile: take in the events once, and render."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from traincheck.api import conclude
from traincheck.handlers import give_back
from traincheck.metrics.trace import Gathered, view_of
from traincheck.page import sections
from traincheck.page.data import Sides, numbers_of
from traincheck.page.inspector import Inspector
from traincheck.page.render import render
from traincheck.page.timeline import Timeline
from traincheck.profile.numbers import Profile, profiles_of
from traincheck.report.difference.lines import labels
from traincheck.report.json_report import report_json
from traincheck.schema.events import Event, MetricsEvent, StateEvent, StepEvent
from traincheck.schema.findings import Report
from traincheck.store.reader import TraceReader
from traincheck.version import VERSION

if TYPE_CHECKING:
    from traincheck.check.engine import Engine
    from traincheck.diff.difference import Difference
    from traincheck.metrics.series import Metrics

_MOST_LISTED = 60  # marks that are listed as text
_MOST_FINDINGS = 100
# Metrics that are drawn by layer: kind of tensor and statistic -> name of the map.
_DRAWN = {
    ("activation", "rms"): "activation rms",
    ("update", "ratio"): "update over parameter",
    ("gradient", "norm"): "gradient norm by variable",
    ("activation_difference", "rms"): "rms of the difference to the reference",
}


class Watcher:
    """Takes in the events of a run for its page.

    Args:
        wanted: steps and their ranks to show in detail.

    Attributes:
        timeline: over the steps. inspector: of a few steps. profiled: the events of profiled steps.
        metrics: the numbers of `traincheck monitor`.
        fault: what went wrong; None if nothing did.
    """

    def __init__(self, wanted: Iterable[tuple[int | None, int]] = ()) -> None:
        self.timeline = Timeline()
        self.inspector = Inspector(wanted)
        self.profiled: list[Event] = []
        self.metrics = Gathered()
        self.fault: Exception | None = None

    def add(self, event: Event) -> None:
        """Take in an event."""
        if isinstance(event, StateEvent):  # nearly all of them
            self.inspector.add(event)
            self.timeline.enter(event)
            return
        if isinstance(event, StepEvent):
            self.inspector.end(event, self.timeline.norms[event.rank])
        else:
            self.inspector.add(event)
        self.timeline.add(event)
        if event.kind == "profile":
            self.profiled.append(event)
        elif isinstance(event, MetricsEvent):
            self.metrics.add(event)

    def take(self, event: Event, is_broken: bool) -> None:
        """Take in an event that was checked. is_broken: whether it breaks a check.

        The check goes on whatever goes wrong here; the page is not made then.
        """
        if self.fault is not None:
            return
        try:
            if is_broken:
                self.inspector.dispute(event.rank)
            self.add(event)
        except Exception as error:
            give_back(error)
            self.fault = error

    def feed(self, engine: Engine, events: Iterable[Event]) -> None:
        """Feed the events to the engine and to the page, in one pass."""
        for event in events:
            self.take(event, bool(engine.observe(event)))


def page_of_run(
    engine: Engine,
    reader: TraceReader,
    *,
    against: TraceReader | None = None,
    difference: Difference | None = None,
) -> tuple[str, Report]:
    """Check a recorded run and make its page.

    Args:
        engine: of the checks; takes in the events.
        reader: of the run.
        against: another run, which is drawn beside it.
        difference: between that run (A) and this one (B).

    Returns:
        The HTML, and the report that it shows.

    Raises:
        TraceFormatError: a run cannot be read.
    """
    watcher = Watcher(_first_of(difference))
    watcher.feed(engine, reader.events())
    report = conclude(engine, reader)
    shown = Shown(report=report, difference=difference)
    return page_from(watcher, reader, shown, against), report


def page_of(reader: TraceReader, shown: Shown, *, against: TraceReader | None = None) -> str:
    """The page of results that are known, with the run that they are about.

    Args:
        reader: of the run.
        shown: the results.
        against: another run, which is drawn beside it.

    Raises:
        TraceFormatError: a run cannot be read.
    """
    found = shown.report.findings if shown.report is not None else ()
    wanted = [*_first_of(shown.difference), *((one.first_step, one.rank) for one in found)]
    watcher = Watcher(wanted)
    for event in reader.events():
        watcher.add(event)
    return page_from(watcher, reader, shown, against)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The results that a page shows; None for those that there are not."""

    report: Report | None = None
    difference: Difference | None = None
    profile: Profile | None = None


def _first_of(difference: Difference | None) -> list[tuple[int | None, int]]:
    first = difference.first if difference is not None else None
    return [] if first is None else [(first.step_b, first.rank)]


def page_from(
    watcher: Watcher, reader: TraceReader, shown: Shown, against: TraceReader | None = None
) -> str:
    """The page of results that are known, from a pass over the run that is made already.

    Args:
        watcher: has taken in the events.
        reader: of the run; only its manifest is read.
        shown: the results.
        against: another run, which is drawn beside it.

    Raises:
        Exception: that of an event which the watcher could not take in.
    """
    if watcher.fault is not None:
        raise watcher.fault
    timeline, report, difference = watcher.timeline, shown.report, shown.difference
    profiles = profiles_of(watcher.profiled)
    profile = shown.profile or next(iter(profiles.values()), None)
    _add_monitored(timeline, reader, watcher.metrics)
    sides = None
    if difference is not None and against is not None:
        sides = _sides(difference, against, timeline)
    findings = report.findings if report is not None else ()
    first = next((step for step, _ in _first_of(difference)), None)
    data = numbers_of(timeline, findings, sides, first)
    told = report_json(report) if report is not None else None
    context = {
        "title": sections.title(report, _name(reader), difference),
        "verdict": sections.verdict(report, difference, profile),
        "environment": sections.environment(report, reader.manifest, timeline),
        "findings": told["findings"][:_MOST_FINDINGS] if told is not None else None,
        "findings_left_out": max(len(findings) - _MOST_FINDINGS, 0),
        "difference": sections.difference_section(difference),
        "marks": data["marks"][:_MOST_LISTED],
        "has_curves": bool(data["curves"]),
        "has_maps": bool(data["maps"]),
        "agree": data["agree"],
        "inspected": [asdict(step) for step in watcher.inspector.steps],
        "layers": sections.layers_section(profile),
        "ranks": sections.ranks_section(report, timeline),
        "observed": sections.observed_section(told),
        "version": VERSION,
        "run": _name(reader),
    }
    return render(context, data)


def _name(reader: TraceReader) -> str:
    """The name of the run, the same wherever it lies."""
    manifest = reader.manifest
    return (manifest.run_id if manifest is not None else "") or reader.path.name


def _sides(difference: Difference, against: TraceReader, timeline: Timeline) -> Sides:
    """The other run on the axis of this one; a resumed run begins where it continues."""
    first, resume, shift = difference.first, difference.resume, 0
    if first is not None:
        shift = first.step_b - first.step
    elif resume is not None:
        shift = -resume.step
    other, metrics = Timeline(timeline.axis, shift), Gathered()
    for event in against.events():
        other.add(event)
        if isinstance(event, MetricsEvent):
            metrics.add(event)
    _add_monitored(other, against, metrics)
    return Sides(timeline=other, names=labels(difference))


def _add_monitored(timeline: Timeline, reader: TraceReader, found: Gathered) -> None:
    """Enter the numbers of `traincheck monitor` that are drawn by layer."""
    if reader.manifest is not None and reader.manifest.settings.get("monitor"):
        add_metrics(timeline, found.metrics(view_of(reader.manifest, reader.path)))


def add_metrics(timeline: Timeline, metrics: Metrics) -> None:
    """Enter the metrics that are drawn by layer."""
    maps: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for key, values in metrics.items():
        subject, _, rest = key.partition("/")
        layer, _, statistic = rest.rpartition("/")
        name = _DRAWN.get((subject, statistic))
        if name is not None:
            for step, value in values.items():
                maps[name, step][layer] = abs(value)
    for (name, step), numbers in maps.items():
        timeline.layers(name, 0, step, numbers)
