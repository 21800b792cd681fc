"""One training step of one rank, taken apart. One step is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from traincheck.diff.records import CallRecord, StateRecord
from traincheck.schema.events import (
    BatchEvent,
    CheckpointEvent,
    CollectiveEvent,
    MarkEvent,
    OptimizerEvent,
    RngEvent,
    StepEvent,
)
from traincheck.schema.torch_api import FUNCTIONAL, Families

_INIT = "torch.nn.init."
_OPENING_RNG = ("start", "loader", "load")  # moments that come before the first batch


@dataclass(slots=True)
class StepView:
    """The records of one step of one rank, by what they are about.

    Attributes:
        number: of the step, from 0.
        opening: changes of variables before the first batch or forward of the step.
        states: the other changes of variables.
        generators: random generators: first as the last step left them, then as found in this.
        after_batch: the states of generators found between the first batch and the first forward.
        closing: those found later in the step, with which the next one begins.
        inits: calls that initialized parameters.
        calls: the other calls, in the order in which they ended.
        end: the record that ends it; None for what follows the last step.
    """

    number: int
    opening: list[StateRecord] = field(default_factory=list)
    states: list[StateRecord] = field(default_factory=list)
    generators: list[RngEvent] = field(default_factory=list)
    after_batch: list[RngEvent] = field(default_factory=list)
    closing: list[RngEvent] = field(default_factory=list)
    batches: list[BatchEvent] = field(default_factory=list)
    inits: list[CallRecord] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    optimizers: list[OptimizerEvent] = field(default_factory=list)
    collectives: list[CollectiveEvent] = field(default_factory=list)
    checkpoints: list[CheckpointEvent] = field(default_factory=list)
    marks: list[MarkEvent] = field(default_factory=list)
    end: StepEvent | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether all of the step is in the trace."""
        return self.end is None or (self.end.recorded and self.end.complete)

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened in it that a comparison could use."""
        return not (self.calls or self.states or self.batches or self.generators)


def step_views(events: Iterable[Any]) -> Iterator[StepView]:
    """The steps of one rank, then what follows the last one.

    A program that begins to count again (a restart in the same trace) ends the iteration: its steps
    are those of another run.
    """
    builder = _Builder(0)
    last = -1
    for event in events:
        kind = event.kind
        if kind == "step":
            if event.is_gap:
                builder.is_torn = True
                continue
            if event.step <= last:
                return
            last = event.step
            view = builder.finish(event)
            yield view
            builder = _Builder(event.step + 1, builder.left_over)
        else:
            builder.add(event)
    yield builder.view


class _Builder:
    """Sorts the records of one step."""

    def __init__(self, number: int, left_over: list[RngEvent] | None = None) -> None:
        self.left_over: list[RngEvent] = []
        self.view = StepView(number, generators=list(left_over or ()), closing=self.left_over)
        self.is_torn = False
        self._is_opening = True

    def add(self, event: Any) -> None:
        kind = event.kind
        if event.step is None and kind != "mark":
            return  # of a worker of a loader: its marks tell how it began
        if kind == "call":
            api = event.api
            if api.startswith(_INIT):
                self.view.inits.append(event)
                return
            if self._is_opening and (event.family == Families.MODULE or api.startswith(FUNCTIONAL)):
                self._is_opening = False
            self.view.calls.append(event)
        elif kind == "state":
            (self.view.opening if self._is_opening else self.view.states).append(event)
        elif kind == "rng":
            if event.moment == "forward":
                self.view.after_batch.append(event)
            elif self._is_opening and (event.change == "seed" or event.moment in _OPENING_RNG):
                self.view.generators.append(event)
            elif event.moment != "save":  # after the forward pass: the next step begins with it
                self.left_over.append(event)
        elif kind == "batch":
            self._is_opening = False
            self.view.batches.append(event)
        elif kind in _LISTS:
            getattr(self.view, _LISTS[kind]).append(event)

    def finish(self, end: StepEvent) -> StepView:
        self.view.number = end.step or 0
        self.view.end = end.replace(recorded=False) if self.is_torn else end
        return self.view


_LISTS = {
    "optimizer": "optimizers",
    "collective": "collectives",
    "checkpoint": "checkpoints",
    "mark": "marks",
}
