"""What rules about numbers share: norms of gradients, losses, histories. Judges nothing."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from traincheck.facts.optimizers import Holder
from traincheck.facts.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, StateEvent
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_summary, tensors_in

NORMS = DISCOVERY | GRADIENTS | Needs(stats=frozenset({"gradient"}))
MATRIX = 2  # dims of a weight; biases and scales have fewer
_KERNEL_CLASSES = (
    "Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
)  # fmt: skip


def number(event: StateEvent | None, name: str) -> float | None:
    """A number of a variable, as it was taken when it was looked at."""
    if event is None or event.summary is None or event.summary.stats is None:
        return None
    return event.summary.stats.get(name)


def is_broken(stats: Mapping[str, float] | None) -> bool:
    """Whether NaN or infinity was among the elements."""
    return bool(stats) and bool((stats or {}).get("nonfinite"))


def applied_norms(facts: StepFacts, holder: Holder) -> dict[int, float]:
    """Norms of the gradients that an optimizer found in this step, before they were clipped.

    By identity of the parameter. Empty when any of them is not finite.
    """
    norms: dict[int, float] = {}
    for identity in holder.names:  # in the order in which they were given
        look = facts.gradients.get(identity)
        norm = number(look, "norm")
        if norm is not None:
            if number(look, "nonfinite"):
                return {}
            norms[identity] = norm
    return norms


def losses(facts: StepFacts) -> list[float] | None:
    """Values that were propagated back in this step; None when one is not known."""
    found = []
    for moment in facts.moments:
        if moment.family == Families.BACKWARD:
            value = loss_of(moment.call)
            if value is None:
                return None
            found.append(value)
    return found


def loss_of(call: CallEvent) -> float | None:
    """The value of a loss, from the call that propagates it back; NaN when it is not finite."""
    for summary in tensors_in(call.args).values():
        return _value(summary)
    return None


def _value(summary: TensorSummary) -> float | None:
    value: Any = summary.value
    if isinstance(value, str):  # how JSON holds what is not finite
        return math.nan
    return float(value) if isinstance(value, (int, float)) else None


def value_of(result: Any) -> float | None:
    """The number in the summary of a tensor without dims."""
    summary = tensor_summary(result)
    return None if summary is None else _value(summary)


def is_kernel(module_class: str | None) -> bool:
    """Whether a module's weight is what its input is multiplied with."""
    return (module_class or "").rpartition(".")[2] in _KERNEL_CLASSES


class History:
    """The last numbers of a series, and their middle."""

    def __init__(self, length: int = 64) -> None:
        self.numbers: deque[float] = deque(maxlen=length)

    def add(self, number: float) -> None:
        self.numbers.append(number)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def median(self) -> float:
        return statistics.median(self.numbers)
