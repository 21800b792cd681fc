"""The losses passed to backward() over one update, as a multiple of the mean loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.facts.losses import OVER_CLASSES
from traincheck.facts.steps import is_judged
from traincheck.relations.readings.reading import (
    LOSS_SCALE,
    OF_TERMS,
    ReadingKey,
    ScalarReading,
)
from traincheck.schema.events import (
    CallEvent,
    MarkEvent,
    StepEvent,
)
from traincheck.schema.values import number

_COUNTED = 1e-4  # how far the divisor of a sum may be from a whole number


@dataclass(slots=True)
class LossScale:
    """The losses passed to backward() over one update, as a multiple of the mean loss.

    The mean of a sum is taken over valid labels, or elements. Nothing is known if a backward had
    several losses or none, if losses are scaled for half precision or are on a GPU, or if an
    optimizer searches and calls its closure several times.

    The multiple of the sum is read too, on average: the number of terms of a batch is a setting.
    """

    _losses: list[tuple[CallEvent, float]] = field(default_factory=list)
    _total: float = 0.0
    _of_terms: float = 0.0
    _is_known: bool = True
    _is_plain: bool = True
    _sums: frozenset[str] = frozenset()
    _begun: list[int] = field(default_factory=list)  # when each backward began
    _ranks: int = 1

    def loss(self, event: CallEvent) -> None:
        """A loss was computed."""
        self._losses.append((event, number(event.result) or 0.0))

    def scaled(self) -> None:
        """The loss passed to the next backward is not known."""
        self._is_known = False

    def grouped(self, event: MarkEvent) -> None:
        """There are several ranks."""
        self._ranks = event.world_size or 1

    def backward(self, event: CallEvent) -> None:
        """Compare the loss passed to backward with the one loss before it."""
        given = number(event.args.get("tensors"))
        losses, self._losses = self._losses, []
        if len(losses) != 1 or given is None or not losses[0][1]:
            self._is_known = False
            return
        loss, value = losses[0]
        scale = given / value
        self._begun.append(event.start_ns)
        if loss.args.get("reduction") != "sum":
            self._total += scale
            self._of_terms += scale / _elements(loss)
            return
        if _elements(loss) == 1:  # whether it is divided by their number is not known
            self._is_known = False
            return
        # The divisor of a sum should be a count
        counted = abs(self._ranks / scale) if scale else 0.5
        self._is_plain &= abs(counted - round(counted)) <= _COUNTED * max(counted, 1)
        self._total += scale * _terms(loss)
        self._of_terms += scale
        self._sums |= {loss.api}

    def updated(self, event: CallEvent) -> None:
        """An optimizer has stepped. Backwards within its step, except one, are no part of a sum."""
        self._is_known &= sum(begun >= event.start_ns for begun in self._begun) <= 1

    def step(self, event: StepEvent) -> Sequence[ScalarReading]:
        """The update is over."""
        found: Sequence[ScalarReading] = ()
        backwards = len(self._begun)
        if is_judged(event) and self._is_known and backwards:
            scales = {"": self._total, OF_TERMS: self._of_terms / backwards}
            found = [
                ScalarReading(
                    ReadingKey(LOSS_SCALE, name=name),
                    scale,
                    event,
                    is_plain=self._is_plain,
                    sums=self._sums,
                    backwards=0 if name else backwards,
                )
                for name, scale in scales.items()
                if not math.isnan(scale)
            ]
        self._losses.clear()
        self._begun.clear()
        self._total, self._of_terms = 0.0, 0.0
        self._is_known = self._is_plain = True
        self._sums = frozenset()
        return found


def _elements(event: CallEvent) -> float:
    """How many elements the target of a loss has."""
    target = event.args.get("target")
    if not isinstance(target, Mapping) or "shape" not in target:
        return math.nan
    return math.prod(target["shape"]) or math.nan


def _terms(event: CallEvent) -> float:
    """How many terms a sum has; NaN where its labels were not counted."""
    target = event.args.get("target")
    if not isinstance(target, Mapping) or "shape" not in target:
        return 1.0
    if event.api in OVER_CLASSES and not target.get("stats"):
        return math.nan
    ignored = float((target.get("stats") or {}).get("ignored", 0.0))
    return _elements(event) * (1.0 - ignored)
