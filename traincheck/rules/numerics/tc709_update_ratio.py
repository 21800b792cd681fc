"""Optimizer steps as large as the weight that they change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from traincheck.readings import recorded
from traincheck.readings.small_samples import has_few
from traincheck.readings.step_facts import DISCOVERY, Moment, StepFacts
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.shared.numbers import MATRIX
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class UpdateRatio(StepRule, code="TC709"):
    """update-ratio: each optimizer step changes weights by a large part of their size.

    What it checks:
        From one step to the next, the norm of each weight changes by a small fraction. (The update
        is at least as large as this change.)

    Why it matters:
        Steps as large as the weights discard everything learned before. A thousandth is usual.

    Fires on:
        - A weight whose norm changes by more than half in each of three consecutive steps.

    Stays quiet on:
        - Weights that start at or near zero (LayerScale), while their growth decreases.
        - Steps in which the learning rate rises by a sixth or more, e.g. in a range test.
        - Biases and scales, also of shape (C, 1, 1).
        - Tensors of fewer than 16 elements.
        - Steps without recorded norms (for large models: all but the first four and every tenth).

    Fix:
        Lower the learning rate by a factor of ten, or warm it up.

    Options:
        ratio: share of the norm.
        steps: consecutive steps.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "Optimizer steps are as large as the weights they change: {variables}"
    likely_cause = "{observed}. The learning rate{where} may be far too high."
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
        self._is_rising = False  # a learning rate rose in this step, or before it
        self._is_searched = False  # it rose enough for a learning-rate search

    def judge(self, facts: StepFacts) -> list[Violation]:
        step, updates = facts.event.step, facts.updates()
        self._is_rising = _rises(self._rates, facts.event.lr)
        self._is_searched = _rises(self._rates, facts.event.lr, by=_LEAP)
        self._rates = facts.event.lr
        if not facts.is_complete or step is None or not updates:
            return []
        found: list[Violation] = []
        for identity, look in facts.numbers.items():
            norm = recorded.norm(look)
            parameter = self.ledger.parameters.get(identity)
            if norm is None or recorded.non_finite(look) or parameter is None:
                self._sizes.pop(identity, None)
            elif _is_matrix(parameter.shape):
                found += self._compare(identity, norm, step, facts, updates)
                if look.change in ("new", "replaced"):
                    self._sizes[identity].step = step - 1  # its value before the step
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
        # From zero with steps of one size: 100 %, 50 %, 33 %; larger while the rate warms up
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
            self.proof(
                facts,
                step=size.first,
                subject=Subject(variable=name),
                symptom=Symptom.GRADIENT_SIZE,
                message=f"each optimizer step changes {name} by as much as the weights themselves",
                expected="steps that are small relative to the weights",
                observed=f"the norm of {name} changed by {change:.0%}, to {norm:.3g}",
                evidence=(updates[-1].call,),
            )
        ]


_LEAP = 1.15  # a range test of a hundred steps from 1e-7 to 10 adds a fifth each time
_NOTHING = 1.01e-4  # root mean square of weights that start near zero


@dataclass(slots=True)
class _Size:
    """Norm of a weight after a step. count: consecutive large changes since step ``first``.

    growth: last change of a weight that started near zero; 0 once it stops decreasing.
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


@lru_cache(maxsize=1024)
def _is_matrix(shape: tuple[int, ...]) -> bool:
    """Whether there are rows and columns: a scale for each channel may have shape (C, 1, 1)."""
    return sum(size > 1 for size in shape) >= MATRIX and not has_few(shape)
