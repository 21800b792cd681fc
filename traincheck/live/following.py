"""Check a run while it goes on, and tell everybody who listens.

`traincheck run`, `traincheck check --follow` and `traincheck.watch` do, and by this the plugin for
pytest and the magic of notebooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from traincheck.api import conclude, so_far
from traincheck.check.engine import LiveEngine

if TYPE_CHECKING:
    from traincheck.check.engine import Engine, Watch
    from traincheck.check.run_overview import RunOverview
    from traincheck.check.suppression.policy import Baseline
    from traincheck.receivers.notifier import Notifier
    from traincheck.schema.events import Event, StepEvent
    from traincheck.schema.findings import Finding, Report
    from traincheck.store.tail import PollReader, TailReader


class Listener:
    """One who hears what a live check finds. Findings of the baseline are kept back."""

    def finding(self, finding: Finding) -> None:
        """A finding is known, at the end of a step."""

    def withdrawn(self, finding: Finding) -> None:
        """A finding that was told does not stand."""

    def step(self, event: StepEvent) -> None:
        """A step of one rank was checked."""

    def tick(self) -> None:
        """Time has passed: after each step, and while there is nothing to read."""

    def finish(self, report: Report) -> None:
        """The report of the whole run, the baseline applied."""


class Following:
    """Feeds an engine with a run that goes on.

    Args:
        engine: made for this run.
        source: of the events; its manifest and notes are in the report.
        listeners: told in this order.
        baseline: findings that are not reported.
        watch: called with each event, and whether a check was broken by it.

    Attributes:
        listeners: as given; more may be added before the first event.
    """

    def __init__(
        self,
        engine: Engine,
        source: TailReader | PollReader,
        listeners: Sequence[Listener] = (),
        *,
        baseline: Baseline | None = None,
        watch: Sequence[Watch] = (),
    ) -> None:
        self.listeners = list(listeners)
        self._engine, self._source, self._baseline = engine, source, baseline
        self._live = LiveEngine(engine, self._found, self._withdrawn, watch)

    @property
    def overview(self) -> RunOverview:
        """The composition of the run so far."""
        return self._live.overview

    def so_far(self) -> Report:
        """The present report."""
        return so_far(self._engine, self._source)

    def feed(self, events: Iterable[Event]) -> None:
        """Check events, in the order of the run."""
        self._live.feed(self._with_steps(events))

    def tick(self) -> None:
        """Tell that time has passed."""
        for listener in self.listeners:
            listener.tick()

    def finish(self, notes: Sequence[str] = (), *, is_partial: bool = False) -> Report:
        """Conclude: no event follows.

        Args:
            notes: come before those of the run.
            is_partial: whether not all events were checked.
        """
        report = conclude(self._engine, self._source)
        is_partial = is_partial or report.is_partial
        report = replace(report, notes=(*notes, *report.notes), is_partial=is_partial)
        if self._baseline is not None:
            report = self._baseline.apply(report)
        self._live.announce(report.findings)
        for listener in self.listeners:
            listener.finish(report)
        return report

    def _with_steps(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            yield event
            if event.kind == "step":  # the engine has it, and its findings are told
                for listener in self.listeners:
                    listener.step(event)
                self.tick()

    def _found(self, finding: Finding) -> None:
        if self._baseline is None or not self._baseline.contains(finding):
            for listener in self.listeners:
                listener.finding(finding)

    def _withdrawn(self, finding: Finding) -> None:
        if self._baseline is None or not self._baseline.contains(finding):
            for listener in self.listeners:
                listener.withdrawn(finding)


class Sending(Listener):
    """Sends findings and the present numbers to receivers. The report is sent by who shows it."""

    def __init__(self, notifier: Notifier, following: Following) -> None:
        self._notifier, self._following = notifier, following

    def finding(self, finding: Finding) -> None:
        """Send it."""
        self._notifier.finding(finding, self._following.so_far())

    def withdrawn(self, finding: Finding) -> None:
        """Send that it does not stand."""
        self._notifier.withdrawn(finding)

    def tick(self) -> None:
        """Send the present numbers, if a receiver needs them now."""
        self._notifier.progress(self._following.so_far)
