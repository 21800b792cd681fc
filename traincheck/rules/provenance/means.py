"""Means of a loss over the wrong elements."""

from __future__ import annotations

from collections import Counter

from traincheck.readings.loss_terms import Label, shown
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.losses import LabelPositions, LossTerm, LossTerms
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
    _steps: Counter[Label] = fresh(Counter)

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
            observed=f"a factor is computed from {name}, which is a mean over {term.elements} "
            "elements, and multiplies it",
        )


_FEWEST = 2  # positions of each kind
_MOST_OF_IGNORED = 0.5  # share of them that is trained


class OnlyIgnoredLabelsTrained(EventRule, code="TC033", severity="error"):
    """only-ignored-labels-trained: the mask of a loss is inverted.

    What it checks:
        In a loss over log-probabilities, the positions that have a label get a gradient, and those
        whose label is the ignored value (negative, such as -100) do not.

    Why it matters:
        The model is trained to predict a placeholder on prompts and padding. The answers that it is
        to learn do not take part.

    Fires on:
        Two steps in which gradients of log_softmax or logsumexp are zero at each position that has
        a label in the batch, and not zero at half of the ignored positions or more. Examples: DPO
        with mask = labels == -100 where != is meant; loss * ~mask.

    Stays quiet on:
        - Losses over all positions, and over any of those with a label.
        - Batches whose labels have no negative value, or another shape than the log-probabilities.

    Fix:
        Invert the mask: mask = labels != -100.

    Source:
        https://github.com/QwenAudio/CosyVoice/issues/1449
    """

    title = "The loss is taken over the ignored labels only"
    likely_cause = "The mask of the loss is inverted: {observed}."
    fix = "Invert the mask of the loss: mask = labels != ignore_index."
    needs = needs_of(LabelPositions)
    _steps = 0

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, LabelPositions)
        if found is None:
            return []
        known = [each for each in found.positions if each.labels is not None and each.trained]
        self.triggered += bool(known)
        inverted = [
            each
            for each in known
            if (
                each.trained_labels == 0
                and (each.labels or 0) >= _FEWEST
                and each.ignored >= _FEWEST
                and each.trained_ignored >= _MOST_OF_IGNORED * each.ignored
            )
        ]
        self._steps += bool(inverted) and len(inverted) == len(known)
        if not inverted or self._steps != _STEPS:
            return []
        self._steps += 1  # report it once
        first = inverted[0]
        rows = first.shape[0] if first.shape else 0
        return self.found(
            event,
            subject=Subject(api=Families.BACKWARD),
            symptom=Symptom.LOSS_INPUT,
            message="only positions with an ignored label get a gradient",
            expected=f"gradients at the {first.labels} positions that have a label",
            observed=f"of {first.labels} positions with a label in {rows} rows none gets a "
            f"gradient, of {first.ignored} ignored ones {first.trained_ignored} do",
        )
