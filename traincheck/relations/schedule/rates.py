"""Learning rates of parameters from step to step, and the shapes that their curves may have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from traincheck.facts.landmarks import scheduler_class
from traincheck.facts.steps import is_judged, is_skipped
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StepEvent
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
