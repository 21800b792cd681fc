"""The landmark calls and scans between two ends of steps, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.facts.forwards import Forwards
from traincheck.schema.events import CallEvent, StateEvent
from traincheck.schema.observations.gradients import UnclearedGradients, WrittenGradients


@dataclass(slots=True)
class StepEntries:
    """The entries since the last step ended, in order.

    Attributes:
        entries: landmark calls, and scans of gradients.
        ids: of the parameters; None for a call.
    """

    entries: list[CallEvent | StateEvent] = field(default_factory=list)
    ids: list[int | None] = field(default_factory=list)
    batches: list[tuple[str, int, int] | None] = field(default_factory=list)
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

    def use(self, call: CallEvent, batch: tuple[str, int, int] | None) -> None:
        """Enter the call of a module."""
        if call.root:
            self.forwards.root(call, batch)
            if call.grad_enabled:  # the rest may be a whole evaluation
                self.add(call, None, batch)
        if call.module is not None and call.module not in self.uses:
            self.uses[call.module] = call

    def add(
        self,
        entry: CallEvent | StateEvent,
        identity: int | None,
        batch: tuple[str, int, int] | None = None,
    ) -> None:
        self.entries.append(entry)
        self.ids.append(identity)
        self.batches.append(batch)

    def gradients(self) -> dict[int, StateEvent]:
        """The last scan of each existing gradient."""
        return {
            identity: entry
            for entry, identity in zip(self.entries, self.ids)
            if identity is not None and isinstance(entry, StateEvent) and entry.summary is not None
        }
