"""Operations on tensors, as the lines of a program used them in a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class OperationUse:
    """The calls of one function in one line, within a step.

    Attributes:
        look: what was looked at, such as `softmax` or `mask`; it decides which numbers there are.
        function: its name without its module; for inputs and outputs of a model, the class of it.
        where: the line that calls it.
        calls: their number.
        numbers: means over the first of these calls, by name.
        of: the name of the argument, for inputs of a model.
    """

    look: str
    function: str
    where: str
    calls: int
    numbers: Mapping[str, float]
    of: str = ""


@dataclass(frozen=True, slots=True)
class OperationUses(Observation):
    """Functions of torch were called in a step, and some of their numbers were read.

    Shares are of up to 2,048 elements, evenly spread.

    Attributes:
        uses: objects with what was looked at (`look`), the name of the `function`, the line, the
            number of `calls`, and the `numbers` of the first ones.
    """

    text: ClassVar[str] = "operations"
    need: ClassVar[str] = "operation@use"
    instrument: ClassVar[str] = "functional"
    is_for_checks: ClassVar[bool] = True

    uses: tuple[OperationUse, ...]
