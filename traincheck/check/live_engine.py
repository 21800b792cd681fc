"""An engine fed while the run goes on: each finding is announced once, at the end of a step.

The caller supplies the events, and receives the findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

from traincheck.check.engine import Engine
from traincheck.check.run_overview import RunOverview
from traincheck.schema.events import Event
from traincheck.schema.findings import Finding
from traincheck.schema.marks import Marks

OnFinding = Callable[[Finding], None]


class LiveEngine:
    """Feeds an engine and announces findings at the ends of steps.

    Args:
        engine: made for this run.
        on_finding: called once with each finding, and not again when it grows.
        on_withdrawn: called with a finding that was announced and is withdrawn.
        watch: called with each event, and whether a check was broken by it.

    Attributes:
        engine: as given.
        overview: what the run consists of so far.
    """

    def __init__(
        self,
        engine: Engine,
        on_finding: OnFinding,
        on_withdrawn: OnFinding | None = None,
        watch: Callable[[Event, bool], None] | None = None,
    ) -> None:
        self.engine = engine
        self.overview = RunOverview()
        self._on_finding = on_finding
        self._on_withdrawn = on_withdrawn
        self._watch = watch
        self._announced: dict[tuple[str, int | None], Finding] = {}
        self._has_news = False

    def feed(self, events: Iterable[Event]) -> None:
        """Take events in the order of the run."""
        observe, add, watch = self.engine.observe, self.overview.add, self._watch
        for event in events:
            add(event)
            found = observe(event)
            if watch is not None:
                watch(event, bool(found))
            if found:
                self._has_news = True
                self._withdraw({one.check_id for one in found if one.withdrawn})
            # One bug affects many variables within a step: they are announced together, when it has
            # ended, or when no step will end because ranks are silent.
            if self._has_news and (
                event.kind == "step" or (event.kind == "mark" and event.text == Marks.STALLED)
            ):
                self.announce(self.engine.so_far().findings)

    def announce(self, findings: Sequence[Finding]) -> None:
        """Announce the findings that have not been announced yet."""
        self._has_news = False
        for finding in findings:
            key = (finding.check, finding.first_step)
            if key not in self._announced:
                self._announced[key] = finding
                self._on_finding(finding)

    def _withdraw(self, checks: Set[str]) -> None:
        """Withdraw the provisional findings of these checks."""
        for key, finding in list(self._announced.items()):
            if finding.provisional and finding.check in checks:
                del self._announced[key]
                if self._on_withdrawn is not None:
                    self._on_withdrawn(finding)
