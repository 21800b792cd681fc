"""Hardly any gradient reaches some weights while others of the same model learn."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

from traincheck.readings.small_samples import has_few
from traincheck.readings.step_facts import StepFacts
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.numerics.updaters import updaters
from traincheck.rules.shared.numbers import MATRIX, NORMS, applied_norms
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation

_FEWEST = 4  # comparable weights of a model
_DEEP = 6  # weights, from which an effect of depth is visible
_ORDERED = 0.8  # share of neighbor pairs of which the earlier has the smaller gradient
_GROWN = 10.0  # times the first size; a gradient that grows like this recovers on its own
_FACTOR = re.compile(
    r"\.lora_(?:embedding_)?A(?:\.|\Z)"
)  # multiplied with a factor that is 0 first


class VanishingGradient(StepRule, code="TC703"):
    """vanishing-gradient: the gradient of some weights is lost on its way back.

    What it checks:
        The gradients of the weights of one model differ by their depth, but not by many orders of
        magnitude.

    Why it matters:
        Weights with such small gradients keep their initial values. The model trains its last
        layers on the output of random ones.

    Fires on:
        - Ten consecutive steps in which the gradient of a weight is at least 1e8 times smaller than
          the largest of the model and does not grow. The size is the root mean square of the
          elements.
        - The same with 1e5 times, if gradients shrink from layer to layer in six weights or more.

    Stays quiet on:
        - Weights whose first gradient was exactly zero, e.g. before a layer that is initialized
          with zeros: it stays as small as that layer.
        - The first factors of LoRA, also when loaded.
        - Gradients that recover on their own, e.g. before a small learned scale.
        - Biases and scales, e.g. before a normalization.
        - Models of fewer than four weights with 16 elements or more.
        - Embeddings.

    Fix:
        Use ReLU-like activations instead of sigmoids. Add normalization or residual connections,
        and an initialization that preserves the scale (torch.nn.init.kaiming_normal_).

    Options:
        ratio: smallest sufficient share of the largest gradient.
        ratio_by_depth: the same, if gradients shrink from layer to layer.
        steps: consecutive steps.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The gradient vanishes before it reaches {variables}"
    likely_cause = (
        "{observed}. Possible causes are saturating activations, or an initialization that "
        "shrinks the signal, in many consecutive layers."
    )
    fix = (
        "Use ReLU-like activations, normalization or residual connections, and an "
        "initialization that preserves the scale."
    )
    needs: Needs = NORMS

    def __init__(self, ratio: float = 1e-8, ratio_by_depth: float = 1e-5, steps: int = 10) -> None:
        super().__init__()
        self.ratio = ratio
        self.ratio_by_depth = ratio_by_depth
        self.steps = steps
        self._streaks: dict[int, _Streak] = {}
        self._began_zero: dict[int, bool] = {}  # parameter -> whether its first gradient was zero

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streaks.clear()
            return []
        models: dict[str, dict[int, float]] = defaultdict(dict)
        for holder in updaters(self.ledger, facts):
            for identity, norm in applied_norms(facts, holder).items():
                parameter = self.ledger.parameters.get(identity)
                began_zero = self._began_zero.setdefault(identity, norm == 0)
                if (
                    parameter is not None
                    and not began_zero
                    and norm > 0
                    and _is_matrix(parameter.shape)
                    and _may_vanish(parameter.name, facts.gradients[identity].module_class or "")
                ):
                    models[parameter.root][identity] = norm / _root_of_size(parameter.shape)
        found: list[Violation] = []
        for sizes in models.values():
            if len(sizes) >= _FEWEST:
                self.triggered += 1
                found += self._compare(sizes, facts)
        return found

    def _compare(self, sizes: dict[int, float], facts: StepFacts) -> list[Violation]:
        largest = max(sizes.values())
        least = self.ratio_by_depth if _shrink_by_depth(list(sizes.values())) else self.ratio
        found = []
        for identity, size in sizes.items():
            share = size / largest
            if share > least:
                self._streaks.pop(identity, None)
                continue
            streak = self._streaks.get(identity)
            if streak is None or share > _GROWN * streak.share:
                self._streaks[identity] = _Streak(1, facts.event.step, share)
                continue
            streak.count += 1
            if streak.count == self.steps:
                found.append(self._violation(identity, streak, facts))
        return found

    def _violation(self, identity: int, streak: _Streak, facts: StepFacts) -> Violation:
        name = self.ledger.name(identity)
        return self.proof(
            facts,
            step=streak.first,
            subject=Subject(variable=name),
            symptom=Symptom.GRADIENT_SIZE,
            message=f"the gradient of {name} is tiny compared with those of the other weights",
            expected="gradients of weights that differ by a few orders of magnitude",
            observed=f"{streak.share:.1e} of the largest gradient of the model",
            evidence=(facts.gradients[identity],),
        )


@dataclass(slots=True)
class _Streak:
    """Consecutive steps. share: of the largest gradient, at the first of them."""

    count: int
    first: int | None
    share: float


@lru_cache(maxsize=1024)
def _root_of_size(shape: tuple[int, ...]) -> float:
    return math.sqrt(math.prod(shape))


@lru_cache(maxsize=1024)
def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) >= MATRIX and not has_few(shape)


@lru_cache(maxsize=4096)
def _may_vanish(name: str, module_class: str) -> bool:
    """Whether a small gradient of this weight says something about its model."""
    return "Embedding" not in module_class and _FACTOR.search(name) is None


def _shrink_by_depth(sizes: list[float]) -> bool:
    """Whether gradients shrink from the last weight to the first."""
    pairs = list(itertools.pairwise(sizes))
    ordered = sum(before < after for before, after in pairs)
    return len(sizes) >= _DEEP and ordered >= _ORDERED * len(pairs)
