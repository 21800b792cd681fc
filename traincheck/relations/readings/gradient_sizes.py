"""Sizes of gradients, and shares of dead or saturated units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from traincheck.facts.small_samples import FEWEST_UNITS, has_few, units_of
from traincheck.facts.steps import is_judged
from traincheck.relations.readings.reading import (
    DEAD,
    FLAT,
    GRADIENT,
    GRADIENT_NORM,
    LEAST_SHARE,
    NON_FINITE,
    SATURATED,
    ReadingKey,
    ScalarReading,
)
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.values import number, tensor_summary

_MIN_WEIGHTS = 2  # fewer have no shares
_SHARES = (("dead", DEAD), ("saturated", SATURATED))


@dataclass(slots=True)
class GradientSizes:
    """Norms of the gradients of an update; nothing if they are scaled."""

    _known: dict[str, StateEvent] = field(default_factory=dict)
    _norms: dict[str, float] = field(default_factory=dict)  # largest in this step, or the last
    _fresh: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)  # cleared, at one end of the step or the other
    _is_scaled: bool = False
    _is_flat: bool = False  # the loss is zero, as a margin loss may be
    _is_lost: bool = False  # the loss is not a number, so gradients are not either
    _non_finite: StateEvent | None = None  # the first such gradient in this step
    _is_known: bool = False  # gradients have statistics
    _is_partial: bool = False  # some have none, as in most steps of a selective view

    def state(self, event: StateEvent) -> None:
        """A gradient came, changed or went."""
        stats = event.summary.stats if event.summary is not None else None
        norm = number(stats.get("norm")) if stats else None
        if stats and "nonfinite" in stats:
            self._is_known = True
            if stats["nonfinite"] and self._non_finite is None:
                self._non_finite = event
        if norm is None:
            self._gone.add(event.name)
            self._is_partial |= event.summary is not None and not stats
            return
        self._gone.discard(event.name)
        # A gradient may be cleared before or after: backward computed the largest of a step.
        if event.name not in self._fresh or norm > self._norms[event.name]:
            self._norms[event.name] = norm
            self._known[event.name] = event
        self._fresh.add(event.name)

    def loss(self, event: CallEvent) -> None:
        """Backward was called."""
        given = event.args.get("tensors")
        self._is_flat |= number(given) == 0
        self._is_lost |= isinstance(given, dict) and isinstance(given.get("value"), str)

    def scaled(self) -> None:
        """A gradient scaler has scaled the loss."""
        self._is_scaled = True

    def step(self, event: StepEvent) -> Sequence[ScalarReading]:
        """The update is over."""
        for name in self._gone - self._fresh:
            self._norms.pop(name, None)
        found = self._readings(event) if is_judged(event) and not self._is_scaled else []
        self._non_finite, self._is_known, self._is_flat = None, False, False
        self._is_lost = self._is_partial = False
        for name in self._gone:
            self._norms.pop(name, None)
        self._fresh.clear()
        self._gone.clear()
        return found

    def _readings(self, event: StepEvent) -> list[ScalarReading]:
        found = []
        if self._is_known:
            wrong = self._non_finite
            at: Event = event if wrong is None else wrong
            found.append(
                ScalarReading(ReadingKey(NON_FINITE, name=GRADIENT), float(wrong is not None), at)
            )
        if not self._norms or self._is_lost or self._is_partial or _is_search(event):
            return found
        norm = math.hypot(*self._norms.values())
        largest = self._known[max(self._norms, key=lambda name: self._norms[name])]
        at = largest if largest.step == event.step else event
        found.append(ScalarReading(ReadingKey(GRADIENT_NORM), norm, at))
        if norm or not self._is_flat:
            found.append(ScalarReading(ReadingKey(FLAT), norm, event))
        weights = [name for name in self._norms if self._is_weight(name)]
        if norm and len(weights) >= _MIN_WEIGHTS:
            name = min(weights, key=lambda name: self._norms[name])
            found.append(
                ScalarReading(ReadingKey(LEAST_SHARE), self._norms[name] / norm, self._known[name])
            )
        return found

    def _is_weight(self, name: str) -> bool:
        """Whether it is a weight: the gradient of a bias may be mere noise."""
        summary = self._known[name].summary
        return summary is not None and len(summary.shape) > 1 and not has_few(summary.shape)


def _is_search(event: StepEvent) -> bool:
    """Whether one update tried several points: a line search may reject distant ones."""
    counters = event.counters
    updates = counters.get("optimizer_step", 0)
    return min(counters.get("backward", 0), counters.get("zero_grad", 0)) > updates > 0


@dataclass(slots=True)
class UnitActivity:
    """Shares of units that are dead for a whole batch, and of saturated elements."""

    _waiting: list[tuple[str, ReadingKey, float, CallEvent]] = field(default_factory=list)

    def call(self, event: CallEvent) -> None:
        """A function or module returned a tensor with statistics, in training."""
        result = event.result
        stats = result.get("stats") if isinstance(result, dict) else None
        if not stats or not event.grad_enabled or event.exception is not None:
            return
        summary = tensor_summary(result)
        units = 0 if summary is None else units_of(summary.shape)
        for stat, quantity in _SHARES:
            if stat in stats and units >= FEWEST_UNITS:
                key = ReadingKey(quantity, event.api, event.module or "")
                self._waiting.append((quantity, key, float(stats[stat]), event))

    def root(self, event: CallEvent) -> Sequence[ScalarReading]:
        """The model that called them all has ended; a function is named with it."""
        waiting, self._waiting = self._waiting, []
        if not event.training or not event.grad_enabled:
            return ()
        root = event.module or event.api
        worst: dict[ReadingKey, ScalarReading] = {}
        for quantity, key, value, call in waiting:
            place = key if key.name else ReadingKey(quantity, key.api, root)
            if place not in worst or value > worst[place].value:
                worst[place] = ScalarReading(place, value, call)
        return tuple(worst.values())

    def step(self) -> None:
        """No model's call reaches over the end of a step."""
        self._waiting.clear()
