"""One thing that two runs have differently: its phase, its name, and its value in each.

Phases are the parts of a training step, in the order in which one causes the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from traincheck.diff.values import Gap


class Phase(str, Enum):
    """The part of a step that a difference is in. Members are in causal order."""

    SETTINGS = "settings"
    RNG = "rng"
    BATCH = "batch"
    FORWARD = "forward"
    LOSS = "loss"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    EVALUATION = "evaluation"
    SAVED = "saved"

    @property
    def words(self) -> str:
        """The name as in a sentence: ``optimizer state``."""
        return "random generator" if self is Phase.RNG else self.value.replace("_", " ")


PHASES = tuple(Phase)


Key: TypeAlias = tuple[Phase, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One differing item of a step.

    Attributes:
        phase: what it belongs to.
        name: of the variable, module, loader, generator or setting, by the names of run A.
        what: "bits", "numbers", "value", "shape", "dtype", "form", "key", "presence", "mode",
            "count", "indices", "rows", "seed", "state".
        leaf: the part of the value that differs first, such as ``['logits']``; "" for the whole.
        a, b: the recorded values; None if there is none.
        index: how many items of this name came before it in the step.
        is_opening: whether it differs before the first batch of the step.
        position: its place in the causal order of the step; smaller is earlier.
        gaps: the numbers that differ.
        is_sized: whether a number was recorded on both sides.
        argument: the argument of a call that differs; "" for its result.
        note: what else there is to know, as words.
        where: ``file:line`` of the user's code; "" if not known.
    """

    phase: Phase
    name: str
    what: str
    leaf: str = ""
    a: Any = None
    b: Any = None
    index: int = 0
    is_opening: bool = False
    position: tuple[int, int] = (0, 0)
    gaps: tuple[Gap, ...] = ()
    is_sized: bool = False
    argument: str = ""
    note: str = ""
    where: str = ""
    call: Any = field(default=None, repr=False)

    @property
    def key(self) -> Key:
        """The phase and the name by which it is followed over the steps."""
        return (self.phase, self.name)

    @property
    def size(self) -> float | None:
        """The relative difference; None if no number was recorded."""
        return max((gap.relative for gap in self.gaps), default=None)
