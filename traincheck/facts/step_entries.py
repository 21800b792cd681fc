"""The landmark calls and scans between two ends of steps, in order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from traincheck.facts.forwards import Forwards
from traincheck.schema.events import CallEvent, StateEvent
from traincheck.schema.observations.gradients import UnclearedGradients, WrittenGradients

Batch = tuple[str, int, int]


class Look(NamedTuple):
    """A scan of a gradient.

    Attributes:
        identity: of the parameter.
        number: of scans before it in the step. place: number of landmark calls before it.
    """

    event: StateEvent
    identity: int
    number: int
    place: int


@dataclass(slots=True)
class StepEntries:
    """The entries since the last step ended, in order.

    Attributes:
        calls: landmark calls, each with the last batch before it.
        looks: scans of gradients, by the span of the call after which they took place.
        gradients: the last scan of each existing gradient, by identity of the parameter.
    """

    calls: list[tuple[CallEvent, Batch | None]] = field(default_factory=list)
    looks: dict[int | None, list[Look]] = field(default_factory=lambda: defaultdict(list))
    gradients: dict[int, StateEvent] = field(default_factory=dict)
    count: int = 0  # of scans
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
        self.looks[event.after].append(Look(event, identity, self.count, len(self.calls)))
        self.count += 1
        if event.summary is not None:
            self.gradients[identity] = event
