"""An engine fed while the run goes on: each finding is announced once, when a step shows it.

Reads no file and prints nothing; where events come from and who is told is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from math import prod

from traincheck.check.engine import Engine
from traincheck.schema.apis import Marks
from traincheck.schema.events import Event, MarkEvent, OptimizerEvent, StateEvent
from traincheck.schema.findings import Finding

Tell = Callable[[Finding], None]


@dataclass(slots=True)
class Watched:
    """What a run consists of, from its events. Models and optimizers are those of all ranks.

    parameters: root of a model, or what an optimizer holds of no module -> its parameters by name,
    with their numbers of elements.
    optimizers: id -> class. processes: rank and pid; workers: those that serve another's loop.
    """

    parameters: dict[str, dict[str, int]] = field(default_factory=dict)
    optimizers: dict[str, str] = field(default_factory=dict)
    processes: set[tuple[int, str]] = field(default_factory=set)
    workers: set[tuple[int, str]] = field(default_factory=set)

    def take(self, event: Event) -> None:
        """Note what this event tells. Called for each event: the frequent kinds leave at once."""
        kind = event.kind
        if kind == "state":
            self._variable(event)  # type: ignore[arg-type]
        elif kind == "optimizer":
            self._optimizer(event)  # type: ignore[arg-type]
        elif kind == "mark":
            self._mark(event)  # type: ignore[arg-type]

    def _variable(self, event: StateEvent) -> None:
        if event.role != "parameter" or event.change not in ("new", "replaced", "gone"):
            return
        root, bracket, _ = event.name.partition(".")[0].partition("[")
        members = self.parameters.setdefault(f"tensors of {root}" if bracket else root, {})
        if event.change == "gone":
            members.pop(event.name, None)
        else:
            shape = event.summary.shape if event.summary is not None else ()
            members[event.name] = prod(shape or ())

    def _optimizer(self, event: OptimizerEvent) -> None:
        self.optimizers[event.id] = event.cls

    def _mark(self, event: MarkEvent) -> None:
        if event.text == Marks.PROCESS:
            process = (event.rank, event.stream.partition("-")[0])
            self.processes.add(process)
            if event.data.get("worker"):
                self.workers.add(process)


class LiveEngine:
    """Feeds an engine and announces findings at the ends of steps.

    Args:
        engine: made for this run.
        tell: called with each finding once, not again when it grows.
        take_back: called with a finding that was announced and is withdrawn.
    """

    def __init__(self, engine: Engine, tell: Tell, take_back: Tell | None = None) -> None:
        self.engine = engine
        self.watched = Watched()
        self._tell = tell
        self._take_back = take_back
        self._told: dict[tuple[str, int | None], Finding] = {}
        self._has_news = False

    def feed(self, events: Iterable[Event]) -> None:
        """Take events in the order of the run."""
        observe, note = self.engine.observe, self.watched.take
        for event in events:
            note(event)
            found = observe(event)
            if found:
                self._has_news = True
                self._withdraw({one.check_id for one in found if one.withdrawn})
            # What one fault does to many variables comes within a step: told of together.
            if self._has_news and _is_moment(event):
                self.announce(self.engine.so_far().findings)

    def announce(self, findings: Sequence[Finding]) -> None:
        """Tell of the findings that have not been told of."""
        self._has_news = False
        for finding in findings:
            key = (finding.check, finding.first_step)
            if key not in self._told:
                self._told[key] = finding
                self._tell(finding)

    def _withdraw(self, checks: Set[str]) -> None:
        """Take back what was announced of these checks provisionally."""
        for key, finding in list(self._told.items()):
            if finding.provisional and finding.check in checks:
                del self._told[key]
                if self._take_back is not None:
                    self._take_back(finding)


def _is_moment(event: Event) -> bool:
    """Whether findings are announced here: a step ended, or none will as ranks are silent."""
    return event.kind == "step" or (event.kind == "mark" and event.text == Marks.STALLED)  # type: ignore[union-attr]
