"""Propose the curves that learning rates of a program follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from traincheck.facts.programs import ProgramName
from traincheck.relations.base import ProposerBase
from traincheck.relations.schedule.epochs import EpochBoundaries
from traincheck.relations.schedule.rates import (
    BY_EPOCH,
    CONSTANT,
    CURVES,
    FALLING,
    FALLS,
    KNOWN,
    MOVES,
    RETURNING,
    SHAPES,
    WARM_UP,
    Rate,
    Rates,
)
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CallEvent, Event

_MIN_EPOCHS = 2  # that begin with a scheduler step, before it is not coincidence


class ScheduleProposer(ProposerBase):
    """Proposes the most specific shape that all rates have."""

    ignored_kinds = frozenset({"state"})

    def __init__(self) -> None:
        self._program = ProgramName()
        self._rates = Rates()
        self._seen: set[Rate] = set()
        self._has_scheduler = False
        self._is_warm_up = True
        self._boundaries = EpochBoundaries()
        self._epochs: Counter[bool] = Counter()  # updates by whether an epoch began before them
        self._is_by_epoch = True

    def observe(self, event: Event) -> None:
        self._program.observe(event)
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
