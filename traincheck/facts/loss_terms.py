"""The terms of losses, as the steps of a process show them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from traincheck.schema.events import Event
from traincheck.schema.observations.loss_terms import ConstantTerm, LossTerms
from traincheck.schema.observations.reading import observed

Label: TypeAlias = tuple[str, str]  # name and line of a term

_SAME = 1e-4  # relative: two ratios of a number to a loss
_MOVED = 1e-3  # relative: a loss that differs between steps


def shown(name: str, where: str) -> str:
    """``kl_div (train.py:36)``."""
    return f"{name} ({where.rpartition('/')[2]})" if where else name


@dataclass(slots=True)
class ConstantSteps:
    """The steps in which a constant was added to a loss.

    Attributes:
        first: the event of the first of them.
        terms: the constant in each, as long as they are few.
    """

    first: Event
    terms: list[ConstantTerm] = field(default_factory=list)

    @property
    def is_of_loss(self) -> bool:
        """For a number: whether it is the same multiple of a loss that moves, in all steps."""
        weights = [term.weight or 0.0 for term in self.terms]
        values = [term.value for term in self.terms]
        return max(weights) - min(weights) <= _SAME * max(map(abs, weights)) and max(values) - min(
            values
        ) > _MOVED * max(map(abs, values))


class LossProvenance:
    """Follows the roots of one process.

    Attributes:
        trained: labels of the terms that gradients flow into, with the number of roots.
        constants: results of loss functions that are added without a graph.
        numbers: plain numbers that may be such results.
    """

    scope = "process"

    def __init__(self) -> None:
        self.trained: Counter[Label] = Counter()
        self.constants: dict[Label, ConstantSteps] = {}
        self.numbers: dict[tuple[Label, int], ConstantSteps] = {}

    def observe(self, event: Event) -> LossTerms | None:
        """The terms, if the event carries them."""
        found = observed(event, LossTerms)
        if found is None:
            return None
        self.trained.update((term.name, term.where) for term in found.terms if term.where)
        count: Counter[Label] = Counter()
        for constant in found.constants:
            label = constant.name, constant.where
            if constant.number:
                steps = self.numbers.setdefault((label, count[label]), ConstantSteps(event))
                count[label] += 1
            elif constant.weight == 0:
                continue
            else:
                steps = self.constants.setdefault(label, ConstantSteps(event))
            steps.terms.append(constant)
            del steps.terms[:-8]
        return found
