"""How far the first updates move weights, in learning rates.

Optimizers that divide by the size of gradients move an element by about the rate, however large
its gradient is; with the averages that Adam takes, by hardly more in the first ten updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from traincheck.facts.resumptions import brings_back
from traincheck.facts.steps import is_judged
from traincheck.relations.readings.reading import MOVED, ReadingKey, ScalarReading
from traincheck.schema.events import CheckpointEvent, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.values import number

_ROUNDED = 2.5e-5  # of the mean size of elements: rounding loses a part of smaller updates

_Group = tuple[str, int]  # an optimizer and the index of a group


@dataclass(slots=True)
class FirstUpdates:
    """Follows one process. There are no readings of optimizers that continue from a file.

    Each class of optimizer has separate readings: one divides by the size of gradients, another
    does not.
    """

    _groups: dict[str, set[_Group]] = field(default_factory=dict)  # by name of the parameter
    _classes: dict[str, str] = field(default_factory=dict)  # of optimizers
    _moved: dict[str, tuple[float, StateEvent]] = field(default_factory=dict)
    _is_resumed: bool = False

    def optimizer(self, event: OptimizerEvent) -> None:
        """An optimizer was created, or its groups changed."""
        self._classes[event.id] = event.cls
        for groups in self._groups.values():
            groups.difference_update([group for group in groups if group[0] == event.id])
        for index, group in enumerate(event.groups):
            for name in group.params:
                self._groups.setdefault(name, set()).add((event.id, index))

    def checkpoint(self, event: CheckpointEvent) -> None:
        """Something was saved or loaded."""
        self._is_resumed |= event.owner is not None and brings_back(event)

    def state(self, event: StateEvent) -> None:
        """A parameter changed."""
        stats = event.summary.stats if event.summary is not None else None
        moved = number(stats.get("moved")) if stats else None
        if moved is not None and event.change == "content":
            known = self._moved.get(event.name)
            if known is None or known[0] < moved:
                self._moved[event.name] = (moved, event)

    def step(self, event: StepEvent) -> Sequence[ScalarReading]:
        """The farthest that an element was moved, by class of optimizer."""
        moves, self._moved = self._moved, {}
        if not moves or self._is_resumed or not is_judged(event):
            return ()
        farthest: dict[str, tuple[float, StateEvent]] = {}
        for name, (moved, look) in moves.items():
            cls, rate = self._rate(name, event)
            if rate is not None and rate > _ROUNDED * _mean_size(look):
                ratio = moved / rate
                if cls not in farthest or ratio > farthest[cls][0]:
                    farthest[cls] = (ratio, look)
        return [
            ScalarReading(ReadingKey(MOVED, name=cls), *found) for cls, found in farthest.items()
        ]

    def _rate(self, name: str, event: StepEvent) -> tuple[str, float | None]:
        """Class and rate of the one group that holds the parameter."""
        groups = self._groups.get(name, set())
        if len(groups) != 1:
            return "", None
        ((optimizer, index),) = groups
        rates = event.lr.get(optimizer, ())
        return self._classes[optimizer], number(rates[index]) if index < len(rates) else None


def _mean_size(look: StateEvent) -> float:
    """The root of the mean square of its elements; infinite where it is not known."""
    summary = look.summary
    norm = number((summary.stats or {}).get("norm")) if summary is not None else None
    if summary is None or norm is None:
        return math.inf
    return norm / math.sqrt(max(1, math.prod(summary.shape)))
