"""Hardly any gradient reaches some weights, while others of the same model learn."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from dataclasses import dataclass

from traincheck.facts.small_samples import has_few
from traincheck.facts.step_facts import Parameter, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.rules.numerics.updaters import updaters
from traincheck.rules.shared.numbers import MATRIX, NORMS, applied_norms
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation

_FEWEST = 4  # weights of a model that can be compared
_DEEP = 6  # weights among which depth shows
_ORDERED = 0.8  # share of neighbours of which the earlier has the smaller gradient
_GROWN = 10.0  # times what it was at first: what grows like this comes by itself
_FACTOR = re.compile(r"\.lora_(?:embedding_)?A(?:\.|\Z)")  # of a product with one that begins at 0


class VanishingGradient(StepRule, code="TC703"):
    """vanishing-gradient: the gradient of some weights is lost on its way back.

    What it checks:
        The gradients of the weights of one model differ by their depth, but not by many orders of
        magnitude.

    Why it matters:
        Weights whose gradient is that small stay where they began: the model trains its last
        layers on the output of random ones.

    Fires on:
        Ten steps in a row in which the gradient of a weight (root mean square of its elements) is
        more than 1e8 times smaller than the largest of the model, and does not grow; 1e5 times
        where gradients shrink from layer to layer, in six weights or more.

    Stays quiet on:
        Weights whose gradient was exactly zero at first, as behind a layer that begins with zeros:
        it is as small as that layer still is; the first factors of LoRA, also when they were
        loaded; gradients that come by themselves, as behind a small scale that is learned; biases
        and scales, in front of a normalization; models of fewer than four weights, of 16
        elements or more; embeddings.

    Fix:
        Use ReLU-like activations instead of sigmoids, add normalization or residual connections,
        and an initialization that keeps the scale (torch.nn.init.kaiming_normal_).

    Options:
        ratio: smallest share of the largest gradient that is enough.
        ratio_by_depth: the same, where gradients shrink from layer to layer.
        steps: steps in a row.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The gradient vanishes before it reaches {variables}"
    likely_cause = (
        "{observed}. Saturating activations or an initialization that shrinks the signal, in "
        "many layers one after another."
    )
    fix = (
        "Use ReLU-like activations, normalization or residual connections, and an "
        "initialization that keeps the scale."
    )
    needs: Needs = NORMS

    def __init__(self, ratio: float = 1e-8, ratio_by_depth: float = 1e-5, steps: int = 10) -> None:
        super().__init__()
        self.ratio = ratio
        self.ratio_by_depth = ratio_by_depth
        self.steps = steps
        self._streaks: dict[int, _Streak] = {}
        self._began_zero: dict[int, bool] = {}  # by parameter, whether its first gradient was

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
                    and self._is_weight(parameter, identity, facts)
                ):
                    models[parameter.root][identity] = norm / math.sqrt(math.prod(parameter.shape))
        found: list[Violation] = []
        for sizes in models.values():
            if len(sizes) >= _FEWEST:
                self.triggered += 1
                found += self._compare(sizes, facts)
        return found

    def _is_weight(self, parameter: Parameter, identity: int, facts: StepFacts) -> bool:
        kind = facts.gradients[identity].module_class or ""
        if len(parameter.shape) < MATRIX or has_few(parameter.shape) or "Embedding" in kind:
            return False
        return _FACTOR.search(parameter.name) is None

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
        return proof(
            (self.code, Symptom.GRADIENT_SIZE),
            facts,
            step=streak.first,
            subject=Subject(variable=name),
            message=f"the gradient of {name} has vanished beside those of the other weights",
            expected="gradients of weights that differ by a few orders of magnitude",
            observed=f"{streak.share:.1e} of the largest gradient of the model",
            evidence=(facts.gradients[identity],),
        )


@dataclass(slots=True)
class _Streak:
    """Steps in a row. share: of the largest gradient, at the first of them."""

    count: int
    first: int | None
    share: float


def _shrink_by_depth(sizes: list[float]) -> bool:
    """Whether gradients get smaller from the last weight to the first."""
    pairs = list(itertools.pairwise(sizes))
    ordered = sum(before < after for before, after in pairs)
    return len(sizes) >= _DEEP and ordered >= _ORDERED * len(pairs)
