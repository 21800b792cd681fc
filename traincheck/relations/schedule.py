"""The relation *schedule*: the shape of the curve that learning rates of a program follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincheck.readings.steps import is_judged, is_skipped, scheduler_class
from traincheck.relations.base import (
    SATISFIED,
    DeciderBase,
    OfProgram,
    ProposerBase,
    RelationBase,
    asked,
    counterexample,
)
from traincheck.relations.iterations import Examples
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.torch_api import Families

CONSTANT, FALLS, WARM_UP = "constant", "falls", "warm-up"
LINEAR, EXPONENTIAL, COSINE, MOVES = "linear", "exponential", "cosine", "moves"
BY_EPOCH = "by epoch"
SHAPES = frozenset({CONSTANT, FALLS, WARM_UP, LINEAR, EXPONENTIAL, COSINE, MOVES, BY_EPOCH})
TEXTS = {
    BY_EPOCH: "schedulers are stepped when an epoch ends, and only then",
    CONSTANT: "only a scheduler changes learning rates",
    COSINE: "learning rates follow a cosine",
    EXPONENTIAL: "learning rates fall by the same factor each time",
    FALLS: "learning rates never rise",
    LINEAR: "learning rates change by the same amount each time",
    MOVES: "learning rates change in every training step until they reach their final value",
    WARM_UP: "once learning rates have fallen, they do not rise again",
}
_TOLERANCE = 1e-5  # relative: rates are computed directly or recursively, and rounding differs
_ROUNDING = 1e-9  # relative: a smaller difference is no change
_KEPT = 5  # distinct rates that the longest check needs
# Curves that a scheduler promises by its name; others may do anything later.
CURVES = {"CosineAnnealingLR": COSINE, "ExponentialLR": EXPONENTIAL, "LinearLR": LINEAR}
FALLING = frozenset(
    {"ExponentialLR", "LinearLR", "MultiStepLR", "PolynomialLR", "ReduceLROnPlateau", "StepLR"}
)
RETURNING = frozenset({"CosineAnnealingWarmRestarts", "CyclicLR"})
KNOWN = RETURNING | FALLING | {"CosineAnnealingLR", "OneCycleLR"}
_BY_BATCH = frozenset({"CyclicLR", "OneCycleLR"})


def is_meant(shape: str, schedulers: Collection[str]) -> bool:
    """Whether rates should have this shape in a run with schedulers of these classes.

    The run may have another scheduler than the reference.
    """
    classes = set(schedulers)
    if shape in CURVES.values():
        return len(classes) == 1 and CURVES.get(min(classes)) == shape
    if shape == FALLS:
        is_warm_up = "LinearLR" in classes and len(classes) > 1
        return bool(classes) and classes <= FALLING and not is_warm_up
    if shape == CONSTANT:
        return not classes
    others = {BY_EPOCH: _BY_BATCH, WARM_UP: RETURNING}.get(shape, frozenset())
    return classes.isdisjoint(others)


@dataclass(slots=True, eq=False)
class Rate:
    """The rate of one parameter group.

    Attributes:
        group: its first parameter.
        last: the latest distinct values.
        steps: steps since the last change.
        has_fallen: whether it ever fell.
        has_risen: whether it ever rose.
        is_cut: steps were not recorded since the last sample.
    """

    group: str
    last: list[float] = field(default_factory=list)
    steps: int = 0
    changes: int = 0
    has_fallen: bool = False
    has_risen: bool = False
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class RateSample:
    """A rate at the end of a step.

    Attributes:
        was: the rate before; None if it has not changed.
        is_new: nothing to compare it with, or steps were not recorded in which it may have changed
            and returned.
    """

    rate: Rate
    value: float
    was: float | None
    is_new: bool
    event: StepEvent


class Rates:
    """Follows the rate of each group of each optimizer."""

    def __init__(self) -> None:
        self.schedulers: dict[str, CallEvent] = {}  # class -> its last step
        self._optimizers: dict[str, OptimizerEvent] = {}
        self._rates: dict[tuple[str, int], Rate] = {}

    def observe(self, event: Event) -> Iterator[RateSample]:
        """A sample of each rate, if a step ends that applied them."""
        if isinstance(event, CallEvent):
            if event.family == Families.SCHEDULER_STEP:
                self.schedulers[scheduler_class(event)] = event
        elif isinstance(event, OptimizerEvent):
            self._optimizers[event.id] = event
        elif isinstance(event, StepEvent):
            if not event.recorded:
                for rate in self._rates.values():
                    del rate.last[:-1]
                    rate.is_cut = True
            elif is_judged(event) and event.counters.get("optimizer_step", 0):
                for name, rates in sorted(event.lr.items()):
                    for index, value in enumerate(rates):
                        yield self._scan(name, index, float(value), event)

    def _scan(self, name: str, index: int, value: float, event: StepEvent) -> RateSample:
        optimizer = self._optimizers.get(name)
        groups = optimizer.groups if optimizer is not None else ()
        held = groups[index].params if index < len(groups) else ()
        rate = self._rates.setdefault((name, index), Rate(held[0] if held else f"{name}[{index}]"))
        was = rate.last[-1] if rate.last else None
        is_cut, rate.is_cut = rate.is_cut, False
        if was is None or abs(value - was) <= _ROUNDING * abs(was):
            rate.steps += not is_skipped(event)
            if was is None:
                rate.last.append(value)
            is_new = was is None or (is_cut and rate.changes > 0)
            return RateSample(rate, value, None, is_new, event)
        rate.steps = 0
        rate.changes += 1
        rate.has_fallen |= value < was
        rate.has_risen |= value > was
        rate.last = [value] if is_cut else [*rate.last[1 - _KEPT :], value]
        return RateSample(rate, value, was, False, event)


def fits(shape: str, rates: Sequence[float]) -> bool | None:
    """Whether the newest of some distinct rates continues a curve; None if it is too early."""
    if shape == LINEAR:
        if len(rates) < _KEPT - 2:
            return None
        a, b, c = rates[-3:]
        return abs(a - 2 * b + c) <= _TOLERANCE * max(abs(a), abs(b), abs(c))
    if shape == EXPONENTIAL:
        if len(rates) < _KEPT - 2:
            return None
        a, b, c = rates[-3:]
        return abs(a * c - b * b) <= _TOLERANCE * b * b
    if len(rates) < _KEPT:
        return None
    # Of a cosine, sums of differences on both sides of a difference are a fixed multiple of it.
    d = [after - before for before, after in zip(rates[-_KEPT:], rates[-_KEPT + 1 :])]
    left, right = (d[0] + d[2]) * d[2], (d[1] + d[3]) * d[1]
    return abs(left - right) <= 1e-3 * max(x * x for x in d)


FOLLOWED = frozenset({
    Families.SCHEDULER_CREATED, Families.SCHEDULER_STEP, Families.BACKWARD, Families.OPTIMIZER_STEP
})  # fmt: skip


class EpochBoundary(NamedTuple):
    """The calls between two updates."""

    is_new_epoch: bool
    is_stepped: bool
    update: CallEvent

    @property
    def is_regular(self) -> bool:
        return self.is_new_epoch == self.is_stepped


@dataclass(slots=True)
class EpochBoundaries:
    """Follows one process.

    An epoch is an epoch of the loader whose batch the next backward uses. That may be another
    loader than before; batches of an evaluation are ignored. A run that creates no scheduler
    trains at one rate on purpose, so it has no boundaries.
    """

    _batch: BatchEvent | None = None
    _epoch: tuple[str, int] | None = None  # of the last batch that was trained on: of which loader
    _is_known: bool = False  # a backward came since the last update, and its batch is known
    _is_new: bool = False
    _is_stepped: bool = False
    _is_first: bool = True
    _has_scheduler: bool = False

    def observe(self, event: Event) -> EpochBoundary | None:
        """The boundary that ``event`` completes, if it is an update."""
        if isinstance(event, BatchEvent):
            self._batch = None if event.stage == EVAL_STAGE else event
        elif isinstance(event, StepEvent):
            if not event.recorded:
                self._is_first = True
        elif isinstance(event, CallEvent) and event.exception is None:
            return self._call(event)
        return None

    def _call(self, event: CallEvent) -> EpochBoundary | None:
        family = event.family or event.api
        if family == Families.SCHEDULER_CREATED:
            self._has_scheduler = True
        elif family == Families.SCHEDULER_STEP:
            self._has_scheduler = self._is_stepped = True
        elif family == Families.BACKWARD and self._batch is not None:
            self._is_known = True
            epoch = self._batch.loader, self._batch.epoch
            self._is_new |= self._batch.index == 0 and self._epoch not in (None, epoch)
            self._epoch = epoch
            self._batch = None
        elif family == Families.OPTIMIZER_STEP and self._is_known:
            boundary = EpochBoundary(self._is_new, self._is_stepped, event)
            is_first, self._is_first = self._is_first, False
            self._is_known = self._is_new = self._is_stepped = False
            return None if is_first or not self._has_scheduler else boundary
        return None


def misplaced_step(boundary: EpochBoundary) -> Example:
    """The counterexample of a boundary, if schedulers are stepped by epoch."""
    update = boundary.update
    return counterexample(
        update,
        Subject(api=Families.SCHEDULER_STEP),
        "a scheduler is stepped when an epoch ends, and only then",
        "an epoch began without a scheduler step"
        if boundary.is_new_epoch
        else "a scheduler was stepped within an epoch",
        Symptom.SCHEDULE,
    )


_MIN_EPOCHS = 2  # that begin with a scheduler step, before it is not coincidence


class ScheduleProposer(ProposerBase):
    """Proposes the most specific shape that all rates have."""

    observes = asked("batch", "call", "optimizer", "step")

    def __init__(self) -> None:
        self._rates = Rates()
        self._seen: set[Rate] = set()
        self._has_scheduler = False
        self._is_warm_up = True
        self._boundaries = EpochBoundaries()
        self._epochs: Counter[bool] = Counter()  # updates by whether an epoch began before them
        self._is_by_epoch = True

    def observe(self, event: Event) -> None:
        if isinstance(event, CallEvent) and "lr_scheduler" in event.api:
            self._has_scheduler = True
        boundary = self._boundaries.observe(event)
        if boundary is not None:
            self._epochs[boundary.is_new_epoch] += 1
            self._is_by_epoch &= boundary.is_regular
        for sample in self._rates.observe(event):
            self._seen.add(sample.rate)
            if sample.was is not None and sample.value > sample.was and sample.rate.has_fallen:
                self._is_warm_up = False

    def hypotheses(self) -> Iterator[Hypothesis]:
        if self._program.name is None or not self._seen:
            return
        yield from map(self._claim, self._shapes())

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        """All shapes: a run that is too short to show a shape may still break it."""
        if self._program.name is not None:
            yield from map(self._claim, sorted(SHAPES))

    def _claim(self, shape: str) -> Hypothesis:
        params: dict[str, Any] = {"program": self._program.name, "shape": shape}
        if shape == MOVES:
            params["schedulers"] = sorted(self._rates.schedulers)
        return Hypothesis(relation="schedule", params=params)

    def _shapes(self) -> Iterator[str]:
        yield from self._curves()
        if self._is_by_epoch and min(self._epochs[True], self._epochs[False]) >= _MIN_EPOCHS:
            yield BY_EPOCH

    def _curves(self) -> Iterator[str]:
        rates, classes = self._seen, set(self._rates.schedulers)
        if not any(rate.changes for rate in rates):
            if not self._has_scheduler:
                yield CONSTANT
            return
        is_known = bool(classes) and classes <= KNOWN
        if is_known or any(rate.has_fallen for rate in rates):  # a warm-up alone may end in a rest
            yield MOVES
        if classes & RETURNING:
            return
        if len(classes) == 1 and classes <= CURVES.keys():
            yield CURVES[min(classes)]
        if classes and classes <= FALLING and not any(rate.has_risen for rate in rates):
            yield FALLS
        elif self._is_warm_up and not classes & CURVES.keys():
            yield WARM_UP


_PATIENCE = 3  # steps that a rate may keep its first value, before it counts as constant
_MOVING = 2  # changes


class Schedule(RelationBase):
    """Learning rates follow a curve of a given shape.

    Claims:
        All learning rates of a program have one of these properties:
        - they never change;
        - they change by the same amount or factor each time;
        - they follow a cosine;
        - they never rise, or not after they have fallen;
        - they change with every step;
        - schedulers are stepped when an epoch of the training data ends, and only then.

    Example:
        ``In train.py, learning rates follow a cosine.`` It breaks when a scheduler is stepped
        twice for a batch, is never stepped, or starts again on resume.

    Evidence:
        One example for each change of the rate of a parameter group (for each step, if nothing may
        change or rise). Steps that a gradient scaler skipped give none. An unchanged rate counts
        only if it moves later, or never moved.

    Chance:
        A coin for each example.

    Not claimed:
        - How large a rate is, where a curve ends, how long it takes.
        - Curves of schedulers that may do anything (a LambdaLR), except a rise after a fall.
        - Curves of runs with a scheduler of another class.
        - Anything about other programs.
    """

    name = "schedule"

    def proposer(self) -> ScheduleProposer:
        return ScheduleProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> ScheduleDecider:
        return ScheduleDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        kinds = frozenset({"mark", "optimizer", "step"})
        if claim.params["shape"] == BY_EPOCH:
            return Needs(calls=FOLLOWED, kinds=kinds | {"batch"})
        return Needs(calls=frozenset({Families.SCHEDULER_STEP}), kinds=kinds)

    def text(self, claim: Hypothesis) -> str:
        return in_program(claim.params, TEXTS[claim.params["shape"]])

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        """A program without a scheduler may add one later."""
        return {"severity": "info" if claim.params["shape"] == CONSTANT else "warning"}


class ScheduleDecider(OfProgram, DeciderBase):
    """Decides at the end of each step.

    At the end of a run nothing: a constant rate may have reached its end.
    """

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._rates = Rates()
        self._claims = [claim.params for claim in claims]
        for params in self._claims:
            if params["shape"] not in SHAPES:
                raise ValueError(f"nothing is known of {dict(params)}")
        self._boundaries = EpochBoundaries()
        self._still: dict[Rate, RateSample] = {}  # the first sample that had not moved
        self._moving: set[Rate] = set()

    def observe(self, event: Event) -> Examples:
        found: list[tuple[int, Example]] = []
        boundary = self._boundaries.observe(event)
        if boundary is not None:
            found += self._of_boundary(boundary)
        for sample in self._rates.observe(event):
            still = self._stillness(sample)
            if sample.rate.changes >= _MOVING:
                self._moving.add(sample.rate)
            for index, params in enumerate(self._claims):
                if self._program.fits(params):
                    is_bound = still is not None and self._must_move(params, still.rate)
                    example = self._judge(params["shape"], sample, still if is_bound else None)
                    if example is not None:
                        found.append((index, example))
        return found

    def _of_boundary(self, boundary: EpochBoundary) -> Iterator[tuple[int, Example]]:
        for index, params in enumerate(self._claims):
            is_asked = params["shape"] == BY_EPOCH and self._program.fits(params)
            if is_asked and is_meant(BY_EPOCH, self._rates.schedulers):
                yield index, SATISFIED if boundary.is_regular else misplaced_step(boundary)

    def _stillness(self, sample: RateSample) -> RateSample | None:
        """The sample at which the rate should have moved and did not, once that is certain."""
        rate = sample.rate
        if sample.is_new or is_skipped(sample.event):
            return None
        if sample.was is None:
            first = self._still.setdefault(rate, sample)
            is_certain = rate.changes == 0 and rate.steps == _PATIENCE
            return first if is_certain else None
        first_still = self._still.pop(rate, None)
        return first_still if rate.changes > 1 else None

    def _must_move(self, params: Mapping[str, Any], rate: Rate) -> bool:
        """Whether a constant rate breaks the claim.

        The schedule is a setting. A scheduler that may do anything should still move a rate when
        another rate moves.
        """
        classes = self._rates.schedulers.keys()
        if params.get("schedulers", [*classes]) != sorted(classes):
            return False
        is_known = bool(classes) and classes <= KNOWN
        return is_known or (rate.changes == 0 and bool(self._moving - {rate}))

    def _judge(self, shape: str, sample: RateSample, still: RateSample | None) -> Example | None:
        if sample.is_new or shape == BY_EPOCH or not is_meant(shape, self._rates.schedulers):
            return None
        if shape == MOVES:
            if still is not None:
                return self._negative(shape, still)
            return None if sample.was is None else SATISFIED
        if sample.was is None:
            return SATISFIED if shape in (CONSTANT, FALLS) else None
        rose = sample.value > sample.was
        if shape == CONSTANT:
            holds: bool | None = False
        elif shape == FALLS:
            holds = not rose
        elif shape == WARM_UP:
            holds = not rose if sample.rate.has_fallen else None
        else:
            holds = fits(shape, sample.rate.last)
        if holds is None:
            return None
        return SATISFIED if holds else self._negative(shape, sample)

    def _negative(self, shape: str, sample: RateSample) -> Example:
        event: StepEvent = sample.event
        calls = [call for _, call in sorted(self._rates.schedulers.items())]
        seen = "stays at" if sample.was is None else f"goes from {sample.was:.6g} to"
        return counterexample(
            event,
            Subject(api=calls[-1].api if calls else Families.SCHEDULER_STEP),
            TEXTS[shape],
            f"the learning rate of {sample.rate.group} {seen} {sample.value:.6g}",
            Symptom.SCHEDULE,
            evidence=(*calls[-1:], event),
        )
