"""The composition of a run, counted from its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from traincheck.schema.events import Event, MarkEvent, StateEvent
from traincheck.schema.marks import Marks
from traincheck.schema.probes.event import ProbeEvent

_MOST_PROBES = 1000


@dataclass(slots=True)
class RunOverview:
    """The models, optimizers and processes of a run, those of all ranks together.

    Attributes:
        parameters: root of a model -> number of elements of each parameter, by name. Parameters
            that an optimizer holds and no module owns are listed under their optimizer.
        optimizers: id -> class.
        processes: rank and pid.
        workers: those of the processes that load data for another.
        probes: results of experiments, the first ones.
    """

    parameters: dict[str, dict[str, int]] = field(default_factory=dict)
    optimizers: dict[str, str] = field(default_factory=dict)
    processes: set[tuple[int, str]] = field(default_factory=set)
    workers: set[tuple[int, str]] = field(default_factory=set)
    probes: list[ProbeEvent] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Take in any event of the run. Frequent kinds are tested first."""
        if event.kind == "state":
            self._variable(event)
        elif event.kind == "optimizer":
            self.optimizers[event.id] = event.cls
        elif event.kind == "mark":
            self._mark(event)
        elif event.kind == "probe" and len(self.probes) < _MOST_PROBES:
            self.probes.append(event)

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

    def _mark(self, event: MarkEvent) -> None:
        if event.text == Marks.PROCESS:
            process = (event.rank, event.stream.partition("-")[0])
            self.processes.add(process)
            if event.data.get("worker"):
                self.workers.add(process)
