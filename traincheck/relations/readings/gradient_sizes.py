"""How large gradients are, and how many units of a model are off or at a limit. Judges nothing."""

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
    Key,
    Reading,
)
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.values import number, tensor_summary

_MIN_WEIGHTS = 2  # fewer have no shares
_SHARES = (("dead", DEAD), ("saturated", SATURATED))


@dataclass(slots=True)
class Gradients:
    """Norms of the gradients that an update finds; nothing where they are scaled."""

    _known: dict[str, StateEvent] = field(default_factory=dict)
    _norms: dict[str, float] = field(default_factory=dict)  # largest in this step, or the last
    _fresh: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)  # cleared, at one end of the step or the other
    _is_scaled: bool = False
    _is_flat: bool = False  # the loss is zero, as that of a margin may be
    _is_lost: bool = False  # the loss is no number: neither are the gradients
    _non_finite: StateEvent | None = None  # the first gradient in this step that is
    _is_told: bool = False  # whether numbers of gradients are
    _is_partial: bool = False  # of some they are not, as in most steps of a selective view

    def state(self, event: StateEvent) -> None:
        """A gradient came, changed or went."""
        stats = event.summary.stats if event.summary is not None else None
        norm = number(stats.get("norm")) if stats else None
        if stats and "nonfinite" in stats:
            self._is_told = True
            if stats["nonfinite"] and self._non_finite is None:
                self._non_finite = event
        if norm is None:
            self._gone.add(event.name)
            self._is_partial |= event.summary is not None and not stats
            return
        self._gone.discard(event.name)
        # Whatever clears it, before or after: what backward gave is the largest of a step.
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
        """Gradients are larger than they should be, on purpose."""
        self._is_scaled = True

    def step(self, event: StepEvent) -> Sequence[Reading]:
        """The update is over."""
        for name in self._gone - self._fresh:
            self._norms.pop(name, None)
        found = self._told(event) if is_judged(event) and not self._is_scaled else []
        self._non_finite, self._is_told, self._is_flat = None, False, False
        self._is_lost = self._is_partial = False
        for name in self._gone:
            self._norms.pop(name, None)
        self._fresh.clear()
        self._gone.clear()
        return found

    def _told(self, event: StepEvent) -> list[Reading]:
        found = []
        if self._is_told:
            wrong = self._non_finite
            at: Event = event if wrong is None else wrong
            found.append(Reading(Key(NON_FINITE, name=GRADIENT), float(wrong is not None), at))
        if not self._norms or self._is_lost or self._is_partial or _is_search(event):
            return found
        norm = math.hypot(*self._norms.values())
        largest = self._known[max(self._norms, key=lambda name: self._norms[name])]
        at = largest if largest.step == event.step else event
        found.append(Reading(Key(GRADIENT_NORM), norm, at))
        if norm or not self._is_flat:
            found.append(Reading(Key(FLAT), norm, event))
        weights = [name for name in self._norms if self._is_weight(name)]
        if norm and len(weights) >= _MIN_WEIGHTS:
            name = min(weights, key=lambda name: self._norms[name])
            found.append(Reading(Key(LEAST_SHARE), self._norms[name] / norm, self._known[name]))
        return found

    def _is_weight(self, name: str) -> bool:
        """A bias may have no gradient but noise: the next layer takes what it adds away."""
        summary = self._known[name].summary
        return summary is not None and len(summary.shape) > 1 and not has_few(summary.shape)


def _is_search(event: StepEvent) -> bool:
    """Whether one update tried several points: those that a line search gives up may be far off."""
    counters = event.counters
    updates = counters.get("optimizer_step", 0)
    return min(counters.get("backward", 0), counters.get("zero_grad", 0)) > updates > 0


@dataclass(slots=True)
class Activity:
    """Shares of units that are off for a whole batch, and of elements at a limit."""

    _waiting: list[tuple[str, Key, float, CallEvent]] = field(default_factory=list)

    def call(self, event: CallEvent) -> None:
        """A function or module gave something of which numbers were taken, in training."""
        result = event.result
        stats = result.get("stats") if isinstance(result, dict) else None
        if not stats or not event.grad_enabled or event.exception is not None:
            return
        summary = tensor_summary(result)
        units = 0 if summary is None else units_of(summary.shape)
        for stat, quantity in _SHARES:
            if stat in stats and units >= FEWEST_UNITS:
                key = Key(quantity, event.api, event.module or "")
                self._waiting.append((quantity, key, float(stats[stat]), event))

    def root(self, event: CallEvent) -> Sequence[Reading]:
        """The model that called them all has ended; a function is named with it."""
        waiting, self._waiting = self._waiting, []
        if not event.training or not event.grad_enabled:
            return ()
        root = event.module or event.api
        worst: dict[Key, Reading] = {}
        for quantity, key, value, call in waiting:
            place = key if key.name else Key(quantity, key.api, root)
            if place not in worst or value > worst[place].value:
                worst[place] = Reading(place, value, call)
        return tuple(worst.values())

    def step(self) -> None:
        """No model's call reaches over the end of a step."""
        self._waiting.clear()
