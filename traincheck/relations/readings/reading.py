"""What a number of a training run is of, and how it is kept. Reads no events."""

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
IN_A_ROW = 5  # calls of a loss: in so many some batch has padding
UNPADDED = "without padding"  # calls on such batches alone
SCALED_LOSS = "the loss that GradScaler has scaled"
OF_TERMS = "sum"  # a loss as a multiple of the sum of its terms, however many they are
LOSS, GRADIENT = "the loss", "gradients"  # of which it is told whether they are finite


class Key(NamedTuple):
    """What a number is of: of an API's argument, of a module, or of the program as a whole."""

    quantity: str
    api: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One number.

    is_plain: nothing but counting went into it. sums: functions whose terms were added up.
    begins: a series of readings. backwards: how many passes were added up, of what adds them.
    """

    key: Key
    value: float
    event: Event
    is_plain: bool = True
    sums: frozenset[str] = frozenset()
    begins: bool = False
    backwards: int = 0
