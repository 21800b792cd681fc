"""Numbers of a training run, and the keys that they are known by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from traincheck.schema.events import Event

LOSS_SCALE = "loss scale"
SMALLEST, LARGEST = "smallest", "largest"
CLIPPED_NORM = "norm before clipping"
GENERATED = "generated"
GRADIENT_NORM = "gradient norm"
NON_FINITE = "non-finite"
LEAST_SHARE = "least share of the gradients"
DEAD, SATURATED = "dead", "saturated"
FLAT = "norm above zero"
CLASSES = "classes"
MOVED = "moved"
END_TOKEN, MASK, PADDING = "end token", "mask", "padding"
AHEAD, HIDDEN, LEFT_OUT = "ahead", "hidden", "left out"
QUANTITIES = frozenset(
    {
        NON_FINITE, LOSS_SCALE, SMALLEST, LARGEST, CLIPPED_NORM, GENERATED, GRADIENT_NORM,
        LEAST_SHARE, DEAD, SATURATED, CLASSES, FLAT,
        END_TOKEN, MASK, PADDING, MOVED, AHEAD, HIDDEN, LEFT_OUT,
    }
)  # fmt: skip
IN_A_ROW = 5  # calls of a loss, at least one of which has padding
UNPADDED = "without padding"  # calls on such batches alone
SCALED_LOSS = "the loss that GradScaler has scaled"
OF_TERMS = "sum"  # a loss as a multiple of the sum of its terms
LOSS, GRADIENT = "the loss", "gradients"  # names of numbers that should be finite


class ReadingKey(NamedTuple):
    """The owner of a number: an argument of an API, a module, or the whole program."""

    quantity: str
    api: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class ScalarReading:
    """One number.

    Attributes:
        is_plain: it results from counting alone.
        sums: functions whose terms were summed.
        begins: it begins a series of readings.
        backwards: how many backward passes were summed.
    """

    key: ReadingKey
    value: float
    event: Event
    is_plain: bool = True
    sums: frozenset[str] = frozenset()
    begins: bool = False
    backwards: int = 0
