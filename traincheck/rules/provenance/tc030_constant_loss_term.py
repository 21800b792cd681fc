"""A term of the loss has no gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from traincheck.readings.loss_terms import ConstantSteps, Label, LossProvenance, shown
from traincheck.rules.base.rule import EventRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.losses import LossTerms

_STEPS = 3
_STEPS_OF_NUMBER = 4
_FIX_OF_NUMBER = "Add the tensor of the loss to the sum, not its number: drop .item() and float()."


class ConstantLossTerm(EventRule, code="TC030"):
    """constant-loss-term: a term of the loss is a constant and trains nothing.

    What it checks:
        Each result of a loss function that is added to the loss has a gradient.

    Why it matters:
        The term is part of the printed loss, but no parameter is trained by it. The loss falls
        because of its other terms.

    Fires on:
        - Three steps in which the result of a loss function without a graph is added to the tensor
          that backward() is called on. Examples: both arguments of kl_div come from the teacher;
          the loss of a critic is computed under torch.no_grad(); loss.detach() is added.
        - Four steps in which a plain number is added that is the same multiple of another loss of
          the step, e.g. aux.item().

    Stays quiet on:
        - Losses that are only printed.
        - Terms that have a gradient in other steps, e.g. in another phase of training.
        - Constants that are factors, e.g. weights that are computed from losses.
        - Terms with a weight of 0.

    Fix:
        Compute the term from the output of the model that is trained, without torch.no_grad(),
        detach() or item() on the way. Remove the term if it is meant to be constant.

    Source:
        https://docs.pytorch.org/docs/stable/notes/autograd.html
    """

    title = "A term of the loss is a constant and trains nothing"
    likely_cause = (
        "The arguments of the term come from frozen or detached tensors, or from a block under "
        "torch.no_grad(): {observed}."
    )
    fix = (
        "Compute the term from the output of the trained model, without torch.no_grad() or "
        "detach(), or remove it from the sum."
    )
    needs = needs_of(LossTerms)

    def __init__(self) -> None:
        super().__init__()
        self._provenance = LossProvenance()
        self._reported: dict[Label, Violation] = {}

    def judge(self, event: Event) -> list[Violation]:
        found = self._provenance.observe(event)
        if found is None:
            return []
        self.triggered += 1
        return [*self._withdrawn(), *self._found(_STEPS)]

    def finish(self) -> list[Violation]:
        """Report after fewer steps: the run is over."""
        return list(self._found(_STEPS - 1))

    def _withdrawn(self) -> Iterator[Violation]:
        """Terms that have a gradient by now: it was a phase."""
        for label in self._reported.keys() & self._provenance.trained.keys():
            yield replace(self._reported.pop(label), withdrawn=True)

    def _found(self, needed: int) -> Iterator[Violation]:
        known = self._provenance
        for label, steps in known.constants.items():
            if len(steps.terms) >= needed and self._is_new(label):
                yield self._violation(label, steps, "has no graph")
        for (label, _), steps in known.numbers.items():
            is_sure = len(steps.terms) >= _STEPS_OF_NUMBER and steps.is_of_loss
            if is_sure and self._is_new(label):
                yield self._violation(label, steps, "is added as a plain number", _FIX_OF_NUMBER)

    def _is_new(self, label: Label) -> bool:
        return label not in self._reported and label not in self._provenance.trained

    def _violation(self, label: Label, steps: ConstantSteps, why: str, fix: str = "") -> Violation:
        name, last = shown(*label), steps.terms[-1]
        number = f"{last.value:.4g}"
        share = number if last.weight is None else f"{last.weight:.4g} x its value"
        found = self.violation(
            steps.first,
            subject=Subject(api=f"torch.nn.functional.{label[0]}"),
            symptom=Symptom.STEP_WITHOUT_GRADIENT,
            message=f"{name} trains nothing: it {why}, and adds {share} to the loss",
            expected="a gradient for each term of the loss",
            observed=f"{name} {why}, and adds {share} to the loss (last: {number})",
        )
        self._reported[label] = found = replace(found, fix=fix, provisional=True)
        return found
