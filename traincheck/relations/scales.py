"""The relation *scales*: numbers of a whole run, compared with those of the reference runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from traincheck.readings.reading import MANY, Reader, Reading, Row
from traincheck.readings.recorded import Numbers
from traincheck.readings.resumptions import brings_back
from traincheck.readings.scalars import GradientSizes
from traincheck.readings.steps import is_judged, scheduler_class
from traincheck.relations.learned import Learned
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.findings import Subject, Symptom, Topic
from traincheck.schema.marks import Marks
from traincheck.schema.places import short
from traincheck.schema.torch_api import SCHEDULE_LENGTHS, TRAINING_STEPS, Families
from traincheck.schema.values import number, tensor_summary
from traincheck.schema.words import counted

LOSS, GRADIENT, RATE, LENGTH = "first loss", "first gradient", "last rate", "schedule length"
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
class Schedules(Reader):
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

    def observe(self, event: Event) -> Iterable[Reading]:
        """Enter an event; the readings need the whole run."""
        if isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, StepEvent):
            self._is_lost |= event.is_gap
            if event.counters.get("optimizer_step"):
                self._updates += 1
                for owner, rates in event.lr.items() if event.recorded else ():
                    for index, value in enumerate(rates):
                        rate = self._rates.setdefault((owner, index), _Rate(value, value, event))
                        rate.peak = max(rate.peak, value)
                        rate.last, rate.event = value, event
        elif isinstance(event, BatchEvent):
            self._rows = self._rows or event.drawn
        elif isinstance(event, CheckpointEvent):
            self._is_lost |= event.owner is not None and bool(event.changed)
        return ()

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

    def finish(self) -> Iterator[Reading]:
        """The readings of the run."""
        if self._is_lost or self._updates < _FEWEST:
            return
        under = counted(self._updates, "update")
        under += f" on {counted(self._rows, 'row')}" if self._rows else ""
        for owner, call in sorted(self._stepped.items()):
            if owner not in self._adaptive:
                yield from self._lengths(owner, call, under)
                yield from self._ends(owner, call, under)

    def _lengths(self, owner: str, call: CallEvent, under: str) -> Iterator[Reading]:
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
            at, share = Subject(api=Families.SCHEDULER_STEP), length / self._updates
            yield Reading(LENGTH, owner, under, (share,), one, at, seen, MANY)

    def _ends(self, owner: str, call: CallEvent, under: str) -> Iterator[Reading]:
        for (name, index), rate in sorted(self._rates.items()):
            if name != owner or rate.peak <= 0:
                continue
            share = rate.last / rate.peak
            seen = (
                f"the last rate is {rate.last:.4g}, {share:.2%} of its peak of {rate.peak:.4g}; "
                f"the schedule is {_lines(*self._made.get(owner, [])[:1], call)}"
            )
            of, within = f"group {index} of {owner}", f"{under}, in step {rate.event.step}"
            at = Subject(api=Families.SCHEDULER_STEP)
            yield Reading(RATE, of, within, (share,), rate.event, at, seen, MANY)


def _lines(*calls: CallEvent) -> str:
    """Where a scheduler is built and stepped."""
    verbs = ("built", "stepped")[-len(calls) :]
    places = [short(call.where) for call in calls]
    return ", ".join(f"{verb} at {place}" for verb, place in zip(verbs, places))


WINDOW = 4  # updates whose spread widens the band; selective traces have all their gradients


@dataclass(slots=True)
class FirstSizes(Reader):
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

    def observe(self, event: Event) -> Iterator[Reading]:
        """The readings, when the last of the first updates ends."""
        if self._is_over:
            return
        if isinstance(event, StateEvent):
            if event.role == "gradient":
                self._gradients.observe(event)
            elif event.role == "parameter" and event.change == "new" and event.summary is not None:
                self._parameters[event.name] = math.prod(event.summary.shape)
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

    def _call(self, event: CallEvent) -> None:
        if event.exception is not None:
            return
        if event.api == Families.SCALE:
            self._is_over = True
        elif event.api == Families.BACKWARD:
            self._calls.append(event)
            self._gradients.observe(event)
        elif event.root and event.grad_enabled and not self._losses:
            self._enter_batch(next(iter(event.args.values()), None))

    def _enter_batch(self, value: object) -> None:
        """The size of the first input: rows, and values of a row to the next power of two."""
        summary = tensor_summary(value) if isinstance(value, Mapping) else None
        if not self._batch and summary is not None and summary.shape and all(summary.shape):
            rows = summary.shape[0]
            digits = round(math.log2(math.prod(summary.shape) / rows))
            self._batch = f"{counted(rows, 'row')} of about {counted(2**digits, 'value')}"

    def _end(self, event: StepEvent) -> Iterator[Reading]:
        calls, self._calls = self._calls, []
        norms = [r for r in self._gradients.observe(event) if r.what == Numbers.GRADIENT_NORM]
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

    def _readings(self) -> Iterator[Reading]:
        call, passes = self._first[0], counted(len(self._first), "backward pass")
        size = counted(sum(self._parameters.values()), "parameter")
        parts = [self._batch, passes, size, f"{self._ranks} ranks" if self._ranks > 1 else ""]
        under = ", ".join(part for part in parts if part)
        at = Subject(api=Families.BACKWARD)
        line = f" at {short(call.where)}" if call.where else ""
        seen = f"{self._losses[0]:.4g} in {passes}{line}"
        yield Reading(LOSS, "", under, tuple(self._losses), call, at, seen, MANY)
        norms = [norm for norm, _ in self._norms]
        if len(norms) == WINDOW and min(norms) > 0:
            seen = f"the norm is {norms[0]:.4g} after {passes}{line}"
            event = self._norms[0][1]
            yield Reading(GRADIENT, "", under, tuple(norms), event, at, seen, MANY)


LOW, HIGH = "low", "high"
_BOUNDS = {LOW: "at least", HIGH: "at most"}
_DIGITS = 3  # significant ones of a limit
_SMALL = 0.05  # of the peak: rates below that are the end of a schedule, whatever they are
_KINDS = frozenset({"batch", "checkpoint", "mark", "step"})
_SIZES = Needs(calls=frozenset({Families.BACKWARD, Families.MODULE, Families.SCALE}), kinds=_KINDS)
_SIZES |= Needs(states=frozenset({"parameter@new"}))
_GRADIENTS = Needs(
    states=sampled("gradient@backward", "gradient@zero_grad"), stats=sampled("gradient")
)
_SCHEDULES = frozenset({Families.SCHEDULER_CREATED, Families.SCHEDULER_STEP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity(Row):
    """A number that a run has once. A reading has several of the run, whose spread widens the band.

    Attributes:
        factor: the limits are that much farther than the smallest and largest reading.
        margin: and at least that much farther.
        varies: the factor is at least the largest reading divided by the smallest one.
        most: the largest possible value.
        only: if given, the one value that is claimed; others are settings.
        text: what is limited, with ``{of}``.
    """

    factor: float
    text: str
    margin: float = 0.0
    varies: bool = False
    most: float = math.inf
    only: float | None = None

    def claimed(self, values: Iterable[Any]) -> Iterable[dict[str, Any]]:
        """LOW, HIGH, both, or neither."""
        known = [value for some in values for value in some]
        low, high = min(known), max(known)
        if self.only is not None and max(high / self.only, self.only / low) > self.factor:
            return ()
        factor = max(self.factor, high / low) if self.varies else self.factor
        least = min(low / factor, low - self.margin)
        largest = max(high * factor, high + self.margin)
        found = [{LOW: _rounded(least, math.floor)}] if least > 0 else []
        return found + ([{HIGH: _rounded(largest, math.ceil)}] if largest < self.most else [])

    def is_known(self, params: Mapping[str, Any]) -> bool:
        return (LOW in params) != (HIGH in params)

    def allows(self, params: Mapping[str, Any], value: Any) -> bool:
        """A run breaks a limit if all its readings do."""
        low, high = min(value), max(value)
        return bool(high >= params.get(LOW, high) and low <= params.get(HIGH, low))

    def says(self, params: Mapping[str, Any]) -> str:
        bound = LOW if LOW in params else HIGH
        text = self.text.format(of=params.get("of", ""))
        return f"{text} {_BOUNDS[bound]} {params[bound]:g}"


def _rounded(value: float, to_whole: Callable[[float], int]) -> float:
    """The value with three digits, rounded down or up."""
    digit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    return float(f"{to_whole(value / digit) * digit:.{_DIGITS}g}")


_ALL = (
    Quantity(
        reader=FirstSizes,
        name=LOSS,
        needs=_SIZES,
        factor=3.0,
        varies=True,
        text="the losses passed to backward() before the first update sum to",
        headline="The loss begins at another scale than in the reference runs",
        cause=(
            "The loss may be a sum instead of a mean (or the reverse), or be divided by "
            "another count: of micro-batches, labels or ranks."
        ),
        fix='Compare reduction= and the divisor of the loss; use reduction="mean", and divide by '
        "the number of micro-batches once.",
        symptom=Symptom.WRONG_VALUE,
        topic=Topic.MAGNITUDE,
    ),
    Quantity(
        reader=FirstSizes,
        name=GRADIENT,
        needs=_SIZES | _GRADIENTS,
        factor=3.0,
        varies=True,
        text="the norm of the gradients of the first update is",
        headline="Gradients begin at another scale than in the reference runs",
        cause=(
            "Gradients may not be divided by the number of micro-batches or ranks, or be "
            "divided twice, or the loss may be reduced in another way."
        ),
        fix="Divide the loss by the number of micro-batches once, and not the gradients again.",
        symptom=Symptom.WRONG_VALUE,  # as the loss, which explains it
        topic=Topic.MAGNITUDE,
        severity="info",
    ),
    Quantity(
        reader=Schedules,
        name=RATE,
        needs=Needs(calls=_SCHEDULES, kinds=_KINDS),
        factor=3.0,
        margin=_SMALL,
        most=1.0,
        text="the last learning rate of {of}, divided by the largest one, is",
        headline="The learning rate ends elsewhere on its schedule than in the reference runs",
        cause=(
            "The schedule may be built for another number of steps than there are updates, or "
            "scheduler.step() called in another unit."
        ),
        fix="Build the schedule for the number of optimizer steps (batches divided by "
        "accumulation steps), and call scheduler.step() after each.",
        symptom=Symptom.SCHEDULE,
        topic=Topic.SCHEDULER,
    ),
    Quantity(
        reader=Schedules,
        name=LENGTH,
        needs=Needs(calls=_SCHEDULES, kinds=_KINDS),
        factor=1.1,
        only=1.0,
        text="the length of the schedule of {of}, divided by the number of updates, is",
        headline="The schedule is built for another number of updates than there are",
        cause=(
            "The length of the schedule may count micro-batches or epochs, with "
            "scheduler.step() after each update."
        ),
        fix="Build the schedule for the number of updates: epochs * len(loader) // "
        "accumulation_steps.",
        symptom=Symptom.SCHEDULE,
        topic=Topic.SCHEDULER,
    ),
)
QUANTITIES: Mapping[str, Quantity] = {each.name: each for each in _ALL}


class Scales(Learned):
    """A number of a run is near that of the reference runs.

    Claims:
        A limit of one of these, for one program:
        - The sum of the losses passed to backward() before the first update.
        - The norm of the gradients of the first update.
        - The last learning rate, divided by the largest one.
        - The length of a schedule, divided by the number of updates, if it is 1.

    Example:
        ``In train.py, the losses passed to backward() before the first update sum to at most 7.1
        (32 rows of about 16 values, 1 backward pass, 963 parameters).`` It breaks when the loss is
        a sum instead of a mean.

    Evidence:
        - A run is ten examples.
        - Limits of a loss or gradient are 3 times as wide as the first four readings of all
          reference runs, or as much wider as the largest of these is larger than the smallest.
        - Limits of a rate are 3 times and 5 % of the peak as wide, those of a length 1.1 times.
        - A run breaks a limit of a loss or gradient if all its first four readings do.
        - Only runs with the same number of rows in a batch, backward passes, parameters and ranks
          are compared; for schedules, with the same number of updates.

    Chance:
        A coin for each example.

    Not claimed:
        - Losses of runs that resume or start from a file, and losses scaled for half precision.
        - Rates that follow a metric, e.g. of ReduceLROnPlateau.
        - Losses that reach zero.
        - Weights of terms of a loss (see *loss_terms*), and steps of a scheduler for each update
          (see *count*).
    """

    name = "scales"
    term = "scale"
    rows = QUANTITIES

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """A narrower limit of the same number implies a wider one."""
        mine, its = dict(claim.params), dict(other.params)
        if LOW in mine and LOW in its:
            is_narrower = mine.pop(LOW) >= its.pop(LOW)
        else:
            is_narrower = mine.pop(HIGH, 0.0) <= its.pop(HIGH, 0.0)
        return claim.relation == other.relation and mine == its and is_narrower
