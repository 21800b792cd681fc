"""Loss and gradient of the first updates, and what their scale depends on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from traincheck.facts.resumptions import brings_back
from traincheck.facts.steps import is_judged
from traincheck.relations.readings.gradient_sizes import GradientSizes
from traincheck.relations.readings.reading import GRADIENT_NORM
from traincheck.relations.scales.quantities import GRADIENT, LOSS
from traincheck.relations.scales.reading import RunReading
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.findings import Subject
from traincheck.schema.marks import Marks
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families
from traincheck.schema.values import number, tensor_summary
from traincheck.schema.words import counted

WINDOW = 4  # updates whose spread widens the band; selective traces have all their gradients


@dataclass(slots=True)
class FirstSizes:
    """Follows the first updates of a process.

    Nothing is read of runs that resume, start from a file, or scale losses for half precision; nor
    if one of the first updates was not recorded, or has another number of backward passes.
    """

    _gradients: GradientSizes = field(default_factory=GradientSizes)
    _parameters: dict[str, int] = field(default_factory=dict)  # name -> elements
    _batch: str = ""
    _ranks: int = 1
    _calls: list[CallEvent] = field(default_factory=list)  # of backward() in this step
    _first: list[CallEvent] = field(default_factory=list)  # in the first update
    _losses: list[float] = field(default_factory=list)
    _norms: list[tuple[float, Event]] = field(default_factory=list)
    _is_over: bool = False

    def observe(self, event: Event) -> Iterator[RunReading]:
        """The readings, when the last of the first updates ends."""
        if self._is_over:
            return
        if isinstance(event, StateEvent):
            self._state(event)
        elif isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, StepEvent):
            yield from self._end(event)
        elif isinstance(event, BatchEvent):
            if event.stage != "eval" and not self._losses:
                self._enter_batch(next(iter(event.leaves.values()), None))
        elif isinstance(event, CheckpointEvent):
            is_file = event.op == "load" or event.owner is not None
            self._is_over |= is_file and brings_back(event)
        elif isinstance(event, MarkEvent) and event.text == Marks.PROCESS_GROUP:
            self._ranks = event.world_size or 1

    def _state(self, event: StateEvent) -> None:
        if event.role == "gradient":
            self._gradients.state(event)
        elif event.role == "parameter" and event.change == "new" and event.summary is not None:
            self._parameters[event.name] = math.prod(event.summary.shape)

    def _call(self, event: CallEvent) -> None:
        if event.exception is not None:
            return
        if event.api == Families.SCALE:
            self._is_over = True
        elif event.api == Families.BACKWARD:
            self._calls.append(event)
            self._gradients.loss(event)
        elif event.root and event.grad_enabled and not self._losses:
            self._enter_batch(next(iter(event.args.values()), None))

    def _enter_batch(self, value: object) -> None:
        """The size of the first input: rows, and values of a row to the next power of two."""
        summary = tensor_summary(value) if isinstance(value, Mapping) else None
        if not self._batch and summary is not None and summary.shape and all(summary.shape):
            rows = summary.shape[0]
            digits = round(math.log2(math.prod(summary.shape) / rows))
            self._batch = f"{counted(rows, 'row')} of about {counted(2**digits, 'value')}"

    def _end(self, event: StepEvent) -> Iterator[RunReading]:
        calls, self._calls = self._calls, []
        norms = [r for r in self._gradients.step(event) if r.key.quantity == GRADIENT_NORM]
        if not calls and event.recorded and not event.counters.get("optimizer_step"):
            return
        self._first = self._first or calls
        given = [number(call.args.get("tensors")) for call in calls]
        known = [value for value in given if value is not None]
        is_whole = len(known) == len(given) == len(self._first) and is_judged(event)
        if not is_whole or not event.counters.get("optimizer_step") or not sum(known) > 0:
            self._is_over = True
            return
        self._losses.append(sum(known))
        self._norms += [(reading.value, event) for reading in norms]
        if len(self._losses) == WINDOW:
            self._is_over = True
            yield from self._readings()

    def _readings(self) -> Iterator[RunReading]:
        call, passes = self._first[0], counted(len(self._first), "backward pass")
        size = counted(sum(self._parameters.values()), "parameter")
        parts = [self._batch, passes, size, f"{self._ranks} ranks" if self._ranks > 1 else ""]
        under = ", ".join(part for part in parts if part)
        at = Subject(api=Families.BACKWARD)
        line = f" at {short(call.where)}" if call.where else ""
        yield RunReading(
            what=LOSS,
            under=under,
            values=tuple(self._losses),
            seen=f"{self._losses[0]:.4g} in {passes}{line}",
            at=at,
            event=call,
        )
        norms = [norm for norm, _ in self._norms]
        if len(norms) == WINDOW and min(norms) > 0:
            seen = f"the norm is {norms[0]:.4g} after {passes}{line}"
            event = self._norms[0][1]
            yield RunReading(
                what=GRADIENT, under=under, values=tuple(norms), seen=seen, at=at, event=event
            )
