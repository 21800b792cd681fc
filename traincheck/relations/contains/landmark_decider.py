"""Decide which landmarks every training step holds: backward, zero_grad, an optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.step_changes import StepChanges
from traincheck.facts.steps import is_judged
from traincheck.facts.variables import Variables
from traincheck.relations.awaited_changes import Awaited
from traincheck.relations.base import SATISFIED, counterexample
from traincheck.relations.contains.call_claims import LANDMARKS, UPDATES
from traincheck.relations.contains.messages import landmark_broken
from traincheck.relations.example_cache import Examples
from traincheck.schema.events import CallEvent, StepEvent
from traincheck.schema.findings import Example, Subject
from traincheck.schema.torch_api import Families


class LandmarkDecider:
    """Decides when a step ends, by the counters of the step."""

    def __init__(
        self,
        claims: Sequence[tuple[int, Mapping[str, Any]]],
        variables: Variables,
        changes: StepChanges,
    ) -> None:
        self._within = [(i, int(p["within"])) for i, p in claims if "within" in p]
        self._claims = [(index, LANDMARKS[params["inner"]]) for index, params in claims]
        self._every = {i: p["inner"] for i, p in claims if "within" not in p}
        # The first of the last steps in a row without an update that was due, and how many
        self._lapse: tuple[StepEvent | None, int] = (None, 0)
        self._awaited = Awaited(variables, changes)
        self._has_stepped = False
        self._last: Examples = ()

    def backward(self, event: CallEvent) -> None:
        """Enter a backward pass."""
        self._awaited.backward(event)

    def step(self, event: StepEvent) -> Examples:
        """Decide what every training step holds."""
        self._awaited.read()
        if _has(event, UPDATES):
            self._awaited.updated(self._lapse[1])
            self._lapse = (event, 0)
        if not is_judged(event):
            if not event.recorded:
                self._lapse = (event, 0)
            self._has_stepped &= event.recorded  # after a gap nothing is known of gradients
            return ()
        examples: list[tuple[int, Example]] = []
        for index, (counters, _) in self._claims:
            if _has(event, counters):
                examples.append((index, SATISFIED))
            elif index in self._every and self._is_due(self._every[index], event):
                examples.append((index, _missing(self._every[index], event)))
        examples += self._lapsed(event)
        self._has_stepped = True
        if examples == self._last:  # by identity of the examples: one comparison each
            return self._last
        self._last = examples
        return examples

    def finish(self) -> Examples:
        """A run that ends without an update, after many of them, proves that one is missing."""
        first, count = self._lapse
        if first is None or not self._awaited.has_updated:
            return ()
        return [
            (index, _missing(Families.OPTIMIZER_STEP, first, count))
            for index, within in self._within
            if self._awaited.needed(within, is_over=True) <= count < self._awaited.needed(within)
        ]

    def _lapsed(self, event: StepEvent) -> Iterator[tuple[int, Example]]:
        """The claims that so many steps without an update break."""
        is_updated = _has(event, UPDATES)
        if is_updated or not self._within or not self._awaited.is_update_due(event):
            return
        first, count = self._lapse
        first = first if count and first is not None else event
        self._lapse = (first, count + 1)
        for index, within in self._within:
            needed = self._awaited.needed(within)
            if (count + 1) % needed == 0:
                yield index, _missing(Families.OPTIMIZER_STEP, first, count + 1)

    def _is_due(self, family: str, event: StepEvent) -> bool:
        """Whether a landmark that a step lacks was due in it."""
        if family != Families.ZERO_GRAD:
            return True
        return self._has_stepped and _adds(event) and self._awaited.is_added_to()


def _has(event: StepEvent, counters: Sequence[str]) -> bool:
    return any(event.counters.get(name, 0) for name in counters)


def _adds(event: StepEvent) -> bool:
    """Whether a step shows a complete iteration whose backward adds to gradients it applies.

    The first step has nothing to clear yet. Gradients may also be computed to look where they
    point. A step without a forward or batch is the rest of a step that was cut too early.
    """
    counts = event.counters
    began = counts.get("forward", 0) or counts.get("batch", 0)
    applied = counts.get("optimizer_step", 0) or counts.get("scaler_step", 0)
    return bool(began and applied and counts.get("backward", 0))


def _missing(family: str, event: StepEvent, steps: int = 1) -> Example:
    """A step that lacks a landmark, or the first of several in a row."""
    return counterexample(event, Subject(api=family), *landmark_broken(family, steps))
