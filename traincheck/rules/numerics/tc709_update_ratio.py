"""Optimizer steps that change a weight by as much as the weight itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traincheck.facts.small_samples import has_few
from traincheck.facts.step_facts import DISCOVERY, Moment, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.rules.shared.numbers import MATRIX, number
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class UpdateRatio(StepRule, code="TC709"):
    """update-ratio: an optimizer changes weights by a large part of their size at each step.

    What it checks:
        From one step to the next, the norm of each weight changes by a fraction of itself. (The
        update is at least as large as this change.)

    Why it matters:
        Steps of the size of the weights themselves throw away what was learned before. A thousandth
        is usual.

    Fires on:
        A weight whose norm changes by more than half in each of three steps in a row.

    Stays quiet on:
        Weights that begin with zeros, or as good as (LayerScale), as long as they grow ever less;
        steps in which the rate is raised by a sixth or more, as in a range test; biases and
        scales, also of shape (C, 1, 1), tensors of fewer than 16 elements, steps whose
        norms were not taken (large models: all but the first four steps and each tenth).

    Fix:
        Lower the learning rate by a factor of ten, or warm it up.

    Options:
        ratio: share of the norm.
        steps: steps in a row.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "Optimizer steps are as large as what they change: {variables}"
    likely_cause = "{observed}. The learning rate is far too high{where}."
    fix = "Lower the learning rate by a factor of ten, or warm it up."
    needs = DISCOVERY | Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}),
        states=frozenset({"parameter@step"}),
        stats=frozenset({"parameter"}),
    )

    def __init__(self, ratio: float = 0.5, steps: int = 3) -> None:
        super().__init__()
        self.ratio = ratio
        self.steps = steps
        self._sizes: dict[int, _Size] = {}
        self._rates: Mapping[str, Sequence[Any]] = {}
        self._is_rising = False  # a learning rate did in this step, or before it
        self._is_searched = False  # by so much that it is being looked for

    def judge(self, facts: StepFacts) -> list[Violation]:
        step, updates = facts.event.step, facts.updates()
        self._is_rising = _rises(self._rates, facts.event.lr)
        self._is_searched = _rises(self._rates, facts.event.lr, by=_LEAP)
        self._rates = facts.event.lr
        if not facts.is_complete or step is None or not updates:
            return []
        found: list[Violation] = []
        for identity, look in facts.numbers.items():
            norm = number(look, "norm")
            parameter = self.ledger.parameters.get(identity)
            if norm is None or number(look, "nonfinite") or parameter is None:
                self._sizes.pop(identity, None)
            elif _is_matrix(parameter.shape):
                found += self._compare(identity, norm, step, facts, updates)
                if look.change in ("new", "replaced"):
                    self._sizes[identity].step = step - 1  # as it was before the step
        return found

    def _compare(
        self, identity: int, norm: float, step: int, facts: StepFacts, updates: Sequence[Moment]
    ) -> list[Violation]:
        known = self._sizes.get(identity)
        size = self._sizes[identity] = _Size(norm, step)
        if known is None:
            parameter = self.ledger.parameters[identity]
            is_nothing = norm <= _NOTHING * math.sqrt(math.prod(parameter.shape))
            size.growth = math.inf if parameter.began_zero or is_nothing else 0.0
            return []
        if known.norm == 0 or known.step != step - 1:
            size.growth = known.growth
            return []
        self.triggered += 1
        change = abs(norm - known.norm) / known.norm
        if change <= self.ratio:
            return []
        # From zero by steps of one size: 100 %, 50 %, 33 %; by larger ones while the rate warms up
        if change < known.growth or (known.growth and self._is_rising):
            size.growth = change
            return []
        if self._is_searched:
            return []
        size.count = known.count + 1
        size.first = known.first if known.count else step
        if size.count != self.steps:
            return []
        name = self.ledger.name(identity)
        return [
            proof(
                (self.code, Symptom.GRADIENT_SIZE),
                facts,
                step=size.first,
                subject=Subject(variable=name),
                message=f"each optimizer step changes {name} by as much as the weights themselves",
                expected="steps that are small beside the weights",
                observed=f"the norm of {name} changed by {change:.0%}, to {norm:.3g}",
                evidence=(updates[-1].call,),
            )
        ]


_LEAP = 1.15  # a range test of a hundred steps from 1e-7 to 10 takes a fifth more each time
_NOTHING = 1.01e-4  # root mean square of weights that begin as good as zero


@dataclass(slots=True)
class _Size:
    """Norm of a weight after a step. count: large changes in a row, since step ``first``.

    growth: of a weight that began as good as zero, the last change; 0 once it does not become less.
    """

    norm: float
    step: int
    count: int = 0
    first: int = 0
    growth: float = 0.0


def _rises(
    before: Mapping[str, Sequence[Any]], now: Mapping[str, Sequence[Any]], *, by: float = 1.0
) -> bool:
    pairs = [pair for name, rates in now.items() for pair in zip(before.get(name, ()), rates)]
    return any(isinstance(a, float) and isinstance(b, float) and b > by * a for a, b in pairs)


def _is_matrix(shape: Sequence[int]) -> bool:
    """Whether there are rows and columns: a scale for each channel may have the shape (C, 1, 1)."""
    return sum(size > 1 for size in shape) >= MATRIX and not has_few(shape)
