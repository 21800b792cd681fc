"""The terms of losses, as the steps of a process show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from traincheck.readings.steps import is_judged
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.observations.losses import ConstantTerm, LabelPositions, LossTerms, Positions
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short

Label: TypeAlias = tuple[str, str]  # name and line of a term

_SAME = 1e-4  # relative: two ratios of a number to a loss
_NEAR = 1e-2  # relative: two ratios of weights; halves have three digits
_MOVED = 1e-3  # relative: a loss that differs between steps


def shown(name: str, where: str) -> str:
    """``kl_div (train.py:36)``."""
    return f"{name} ({short(where)})" if where else name


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


class StepTerms:
    """Collects the terms of the roots of a step, and the positions of its labels."""

    def __init__(self) -> None:
        self._step = StepOfLosses()

    def observe(self, event: Event) -> StepOfLosses | None:
        """The losses of a step that ends; None for other events, and if none was read."""
        terms, labels = observed(event, LossTerms), observed(event, LabelPositions)
        if terms is not None:
            self._step.roots.append(terms)
        elif labels is not None:
            self._step.labels += [each for each in labels.positions if each.labels]
        if not isinstance(event, StepEvent):
            return None
        step, self._step = self._step, StepOfLosses()
        return step if is_judged(event) and (step.roots or step.labels) else None


@dataclass(slots=True)
class StepOfLosses:
    """The losses of a step, as far as they were read.

    Attributes:
        roots: of its backward passes.
        labels: positions of log-probabilities that have labels.
    """

    roots: list[LossTerms] = field(default_factory=list)
    labels: list[Positions] = field(default_factory=list)


def trained_names(roots: Iterable[LossTerms]) -> frozenset[str]:
    """Names of the terms with a weight other than 0; the second of a root is ``Mean (2)``."""
    found: set[str] = set()
    for root in roots:
        for name, count in Counter(term.name for term in root.terms if term.weight != 0).items():
            found |= {name} | {f"{name} ({number})" for number in range(2, count + 1)}
    return frozenset(found)


def ratios(roots: Iterable[LossTerms]) -> dict[tuple[str, str], float]:
    """Weights of terms divided by that of the first by name, of the same root.

    Names that a root has twice are left out, and so are ratios that roots do not agree on.
    """
    found: dict[tuple[str, str], float] = {}
    unclear: set[tuple[str, str]] = set()
    for root in roots:
        count = Counter(term.name for term in root.terms)
        known = {t.name: t.weight for t in root.terms if count[t.name] == 1 and t.weight}
        names = sorted(known)
        for name in names[1:]:
            key, ratio = (name, names[0]), known[name] / known[names[0]]
            if key in found and not is_near(found[key], ratio):
                unclear.add(key)
            found[key] = ratio
    return {key: ratio for key, ratio in found.items() if key not in unclear}


def is_near(one: float, other: float) -> bool:
    """Whether two ratios of weights are the same up to rounding."""
    return abs(one - other) <= _NEAR * max(abs(one), abs(other))
