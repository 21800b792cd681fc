"""A mean loss is multiplied by a function of itself, as in a focal loss of the mean."""

from __future__ import annotations

from collections import Counter

from traincheck.readings.loss_terms import Label, shown
from traincheck.rules.base.rule import EventRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.losses import LossTerm, LossTerms
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families

_STEPS = 2


class MeanWeightedByItself(EventRule, code="TC032"):
    """mean-weighted-by-itself: the weight of each sample is computed from the mean of the batch.

    What it checks:
        A loss that is a mean over a batch is not multiplied by an exponential function of itself.

    Why it matters:
        In a focal loss, the factor (1 - p) ** gamma belongs to each sample. Computed from the mean,
        it is the same for all samples: hard samples get no larger weight, and the loss is only
        rescaled.

    Fires on:
        Two steps in which the loss is a product of a mean over several elements, and of a factor
        that is computed from the same mean through exp, sigmoid, softplus or tanh. Example:
        ce = cross_entropy(x, y); loss = (1 - exp(-ce)) ** 2 * ce.

    Stays quiet on:
        - Factors for each sample (reduction="none").
        - Roots, logarithms, powers and limits of a mean, e.g. an RMSE.
        - Means weighted by parameters, by constants or by other losses.

    Fix:
        Compute the loss with reduction="none", apply the factor, and take the mean last.

    Source:
        https://arxiv.org/abs/1708.02002
    """

    title = "The weight of each sample is computed from the mean of the batch"
    likely_cause = "The loss was reduced before its factor was computed: {observed}."
    fix = 'Compute the loss with reduction="none", apply the factor, and take the mean last.'
    needs = needs_of(LossTerms)

    def __init__(self) -> None:
        super().__init__()
        self._steps: Counter[Label] = Counter()

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, LossTerms)
        if found is None:
            return []
        self.triggered += 1
        weighted = {
            (term.name, term.where): term
            for term in found.terms
            if term.weighted_by_itself and term.elements > 1
        }
        self._steps.update(weighted.keys())
        return [
            self._violation(event, term)
            for label, term in weighted.items()
            if self._steps[label] == _STEPS
        ]

    def _violation(self, event: Event, term: LossTerm) -> Violation:
        name = shown(term.name, term.where)
        return self.violation(
            event,
            subject=Subject(
                api=f"torch.nn.functional.{term.name}" if term.where else Families.BACKWARD
            ),
            symptom=Symptom.WRONG_VALUE,
            message=f"{name}, a mean over {term.elements} elements, is weighted by itself",
            expected="a factor for each element, before the mean",
            observed=f"a factor is computed from {name}, which is a mean over {term.elements}"
            " elements, and multiplies it",
        )
