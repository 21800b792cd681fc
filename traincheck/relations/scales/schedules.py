"""Lengths of schedules, and where learning rates end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from traincheck.facts.landmarks import scheduler_class
from traincheck.relations.scales.quantities import LENGTH, RATE
from traincheck.relations.scales.reading import RunReading
from traincheck.schema.events import BatchEvent, CallEvent, CheckpointEvent, Event, StepEvent
from traincheck.schema.findings import Subject
from traincheck.schema.places import short
from traincheck.schema.torch_api import SCHEDULE_LENGTHS, TRAINING_STEPS, Families
from traincheck.schema.values import number
from traincheck.schema.words import counted

_LENGTHS = (*(name for name in SCHEDULE_LENGTHS if name != "T_0"), TRAINING_STEPS)
_PLATEAU = "ReduceLROnPlateau"  # follows the losses, which vary with the seed
_FEWEST = 8  # updates


@dataclass(slots=True)
class _Rate:
    """The rate of a group: at its peak and last, and the last update that has it."""

    peak: float
    last: float
    event: StepEvent


@dataclass(slots=True)
class Schedules:
    """Follows the schedules of a process.

    Nothing is read of runs that resume or lost events, nor of a rate that follows a metric.
    """

    _made: dict[str, list[CallEvent]] = field(default_factory=lambda: defaultdict(list))
    _stepped: dict[str, CallEvent] = field(default_factory=dict)
    _adaptive: set[str] = field(default_factory=set)
    _rates: dict[tuple[str, int], _Rate] = field(default_factory=dict)
    _updates: int = 0
    _rows: int = 0  # of the first batch
    _is_lost: bool = False

    def observe(self, event: Event) -> None:
        """Enter an event."""
        if isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, StepEvent):
            self._is_lost |= event.is_gap
            if event.counters.get("optimizer_step"):
                self._updates += 1
                self._enter_rates(event)
        elif isinstance(event, BatchEvent):
            self._rows = self._rows or event.drawn
        elif isinstance(event, CheckpointEvent):
            self._is_lost |= event.owner is not None and bool(event.changed)

    def _call(self, event: CallEvent) -> None:
        owner = str(event.owner)
        if event.exception is not None or event.family is None:
            return
        if event.family == Families.SCHEDULER_CREATED:
            self._made[owner].append(event)
        elif event.family == Families.SCHEDULER_STEP:
            self._stepped[owner] = event
            if event.args or scheduler_class(event) == _PLATEAU:
                self._adaptive.add(owner)

    def _enter_rates(self, event: StepEvent) -> None:
        for owner, rates in event.lr.items() if event.recorded else ():
            for index, value in enumerate(rates):
                rate = self._rates.setdefault((owner, index), _Rate(value, value, event))
                rate.peak = max(rate.peak, value)
                rate.last, rate.event = value, event

    def finish(self) -> Iterator[RunReading]:
        """The readings of the run."""
        if self._is_lost or self._updates < _FEWEST:
            return
        under = counted(self._updates, "update")
        under += f" on {counted(self._rows, 'row')}" if self._rows else ""
        for owner, call in sorted(self._stepped.items()):
            if owner not in self._adaptive:
                yield from self._lengths(owner, call, under)
                yield from self._ends(owner, call, under)

    def _lengths(self, owner: str, call: CallEvent, under: str) -> Iterator[RunReading]:
        made = self._made.get(owner, ())
        for one in made if len(made) == 1 else ():
            found = (number(one.args.get(name)) for name in _LENGTHS)
            length = next((each for each in found if each is not None), None)
            if not length:
                continue
            name = scheduler_class(one)
            seen = (
                f"{name} is built for {length:g} steps, and there are {self._updates} updates: "
                f"{length / self._updates:.4g} times as many; it is {_lines(one, call)}"
            )
            yield RunReading(
                what=LENGTH,
                of=owner,
                under=under,
                values=(length / self._updates,),
                seen=seen,
                at=Subject(api=Families.SCHEDULER_STEP),
                event=one,
            )

    def _ends(self, owner: str, call: CallEvent, under: str) -> Iterator[RunReading]:
        for (name, index), rate in sorted(self._rates.items()):
            if name != owner or rate.peak <= 0:
                continue
            share = rate.last / rate.peak
            seen = (
                f"the last rate is {rate.last:.4g}, {share:.2%} of its peak of {rate.peak:.4g}; "
                f"the schedule is {_lines(*self._made.get(owner, [])[:1], call)}"
            )
            yield RunReading(
                what=RATE,
                of=f"group {index} of {owner}",
                under=f"{under}, in step {rate.event.step}",
                values=(share,),
                seen=seen,
                at=Subject(api=Families.SCHEDULER_STEP),
                event=rate.event,
            )


def _lines(*calls: CallEvent) -> str:
    """Where a scheduler is built and stepped."""
    verbs = ("built", "stepped")[-len(calls) :]
    places = [short(call.where) for call in calls]
    return ", ".join(f"{verb} at {place}" for verb, place in zip(verbs, places))
