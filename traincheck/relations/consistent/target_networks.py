"""Models that are updated by copying others, such as target networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from traincheck.facts.distributed.rank_steps import Content, content
from traincheck.facts.variables import Variables
from traincheck.schema.events import Event, OptimizerEvent, StateEvent, StepEvent

_MIN_COPIES = 3  # an average also begins as a copy


class CopyTracker:
    """Follows one process: which models that changed in a step are copies of others.

    A copy may have the content that the other model has at the end of the step or had at its start.
    """

    def __init__(self) -> None:
        self.variables = Variables()
        self._now: dict[str, Content | None] = {}
        self._before: dict[str, Content | None] = {}
        self._changed: dict[str, set[str]] = defaultdict(set)  # model -> names below it

    def observe(self, event: Event) -> None:
        """Enter a change."""
        if isinstance(event, OptimizerEvent):
            self.variables.hold(event)
        elif isinstance(event, StateEvent) and event.role == "parameter":
            self.variables.observe(event)
            if event.change == "flags":
                return
            self._now[event.name] = content(event.summary)
            if event.change in ("content", "unknown"):
                model, _, below = event.name.partition(".")
                self._changed[model].add(below)

    def turn(self, event: StepEvent) -> None:
        """Begin a new step."""
        self._changed.clear()
        if not event.recorded:
            self._now.clear()
        self._before = dict(self._now)

    def changed(self) -> list[str]:
        """Models without an optimizer that changed in this step."""
        held = self.variables.held_models()
        return sorted(model for model in self._changed if model not in held)

    def differing(self, copy: str, of: str) -> list[str] | None:
        """Names below ``copy`` that differ from ``of`` after a change; None if unknown."""
        found = []
        for below in sorted(self._changed[copy]):
            mine = self._now.get(f"{copy}.{below}")
            name = f"{of}.{below}"
            theirs = self._now.get(name), self._before.get(name)
            if mine is None or theirs == (None, None):
                return None
            if mine not in theirs:
                found.append(f"{copy}.{below}")
        return found


class CopyFinder:
    """Finds models that were exact copies whenever they changed."""

    def __init__(self) -> None:
        self._copies = CopyTracker()
        self._times: dict[tuple[str, str], int] = defaultdict(int)
        self._broken: set[tuple[str, str]] = set()

    def observe(self, event: Event) -> None:
        if not isinstance(event, StepEvent):
            self._copies.observe(event)
            return
        for copy in self._copies.changed():
            for of in sorted(self._copies.variables.held_models()):
                if (copy, of) in self._broken:
                    continue
                if self._copies.differing(copy, of) == []:
                    self._times[copy, of] += 1
                else:
                    self._broken.add((copy, of))
        self._copies.turn(event)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Copies and their sources."""
        for pair, times in sorted(self._times.items()):
            if times >= _MIN_COPIES and pair not in self._broken:
                yield pair
