"""Numbers that several rules use: gradient norms, losses, histories."""

from __future__ import annotations

import statistics
from collections import deque

from traincheck.readings import recorded
from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.schema.claims import Needs
from traincheck.schema.torch_api import Families

NORMS = DISCOVERY | GRADIENTS | Needs(stats=frozenset({"gradient"}))
MATRIX = 2  # dims of a weight; biases and scales have fewer
_KERNEL_CLASSES = (
    "Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
)  # fmt: skip


def applied_norms(facts: StepFacts, holder: Holder) -> dict[int, float]:
    """Norms of the gradients that an optimizer received in this step, before clipping.

    Keys are identities of parameters. Empty if any norm is not finite.
    """
    if not facts.broken.isdisjoint(holder.names):
        return {}
    # In the order of the optimizer's parameters
    return {identity: facts.norms[identity] for identity in holder.names if identity in facts.norms}


def losses(facts: StepFacts) -> list[float] | None:
    """The values passed to backward in this step; None if one is unknown."""
    found = []
    for moment in facts.moments:
        if moment.family == Families.BACKWARD:
            value = recorded.loss_of(moment.call)
            if value is None:
                return None
            found.append(value)
    return found


def is_kernel(module_class: str | None) -> bool:
    """Whether the weight of a module multiplies its input."""
    return (module_class or "").rpartition(".")[2] in _KERNEL_CLASSES


class History:
    """The last numbers of a series, and their median."""

    def __init__(self, length: int = 64) -> None:
        self.numbers: deque[float] = deque(maxlen=length)

    def add(self, number: float) -> None:
        self.numbers.append(number)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def median(self) -> float:
        return statistics.median(self.numbers)
