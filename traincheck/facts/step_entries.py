"""The landmark calls and scans between two ends of steps, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from traincheck.facts.forwards import Forwards
from traincheck.schema.events import CallEvent, StateEvent
from traincheck.schema.observations.gradients import UnclearedGradients, WrittenGradients

Batch = tuple[str, int, int]


class Scan(NamedTuple):
    """Scans of gradients, in order, without a landmark call between them.

    Attributes:
        after: span of the call at whose end they took place.
        place: number of landmark calls before them.
        looks: what they found, and of which parameters.
    """

    after: int | None
    place: int
    looks: list[tuple[StateEvent, int]]


@dataclass(slots=True)
class StepEntries:
    """The entries since the last step ended, in order.

    Attributes:
        calls: landmark calls, each with the last batch before it.
        scans: of gradients.
        gradients: the last scan of each existing gradient, by identity of the parameter.
    """

    calls: list[tuple[CallEvent, Batch | None]] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    gradients: dict[int, StateEvent] = field(default_factory=dict)
    uses: dict[str, CallEvent] = field(default_factory=dict)
    forwards: Forwards = field(default_factory=Forwards)
    softmaxes: list[CallEvent] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)
    flipped: set[int] = field(default_factory=set)
    uncertain: set[int] = field(default_factory=set)
    numbers: dict[int, StateEvent] = field(default_factory=dict)
    kept: UnclearedGradients | None = None
    written: list[WrittenGradients] = field(default_factory=list)
    has_own: bool = False

    def use(self, call: CallEvent, batch: Batch | None) -> None:
        """Enter the call of a module."""
        if call.root:
            self.forwards.root(call, batch)
            if call.grad_enabled:  # the rest may be a whole evaluation
                self.add(call, batch)
        if call.module is not None and call.module not in self.uses:
            self.uses[call.module] = call

    def add(self, call: CallEvent, batch: Batch | None) -> None:
        """Enter a landmark call."""
        self.calls.append((call, batch))

    def look(self, event: StateEvent, identity: int) -> None:
        """Enter the scan of a gradient."""
        place = len(self.calls)
        last = self.scans[-1] if self.scans else None
        if last is None or last.after != event.after or last.place != place:
            last = Scan(event.after, place, [])
            self.scans.append(last)
        last.looks.append((event, identity))
        if event.summary is not None:
            self.gradients[identity] = event

    def norms(self) -> tuple[dict[int, float], frozenset[int]]:
        """The norms of the gradients, and those that hold NaN or infinity."""
        norms: dict[int, float] = {}
        broken: set[int] = set()
        for identity, look in self.gradients.items():
            stats = look.summary.stats if look.summary is not None else None
            norm = stats.get("norm") if stats else None
            if stats and norm is not None:
                norms[identity] = norm
                if stats.get("nonfinite"):
                    broken.add(identity)
        return norms, frozenset(broken)
