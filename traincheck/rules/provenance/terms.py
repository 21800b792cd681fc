"""Terms of a loss that are constant, or that are dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from traincheck.readings.loss_terms import ConstantSteps, Label, LossProvenance, shown
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.losses import LossSum, LossSums, LossTerms
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

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
    _provenance = fresh(LossProvenance)
    _reported: dict[Label, Violation] = fresh(dict)

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


class DroppedLossSum(EventRule, code="TC031"):
    """dropped-loss-sum: the sum of several losses is computed, but only a part is trained on.

    What it checks:
        Where a sum of losses with gradients is computed, backward() reaches all of its terms.

    Why it matters:
        The auxiliary loss looks active: it is computed, weighted, added and logged. But the tensor
        that backward() is called on does not contain it, so it trains nothing.

    Fires on:
        Three steps in which a line adds scalars with a graph, backward() reaches some of them, and
        neither the sum nor the other scalars. Examples: total = loss + 0.1 * aux is logged, and
        loss.backward() is called; a function returns the wrong one of two losses.

    Stays quiet on:
        - Losses that are computed and not used at all, e.g. in an evaluation with gradients.
        - Sums for a log of losses that have a backward() each, e.g. of a GAN.
        - Terms that are trained in other steps.
        - Sums of detached losses or of numbers.

    Fix:
        Call backward() on the sum. If the term is only to be logged, compute it under
        torch.no_grad().

    Source:
        https://github.com/oclivegriffin/crosscode/pull/3
    """

    title = "A sum of losses is computed, but only a part of it is trained on"
    likely_cause = "backward() is called on a term in place of the sum: {observed}."
    fix = (
        "Call backward() on the sum (or return it). If the other term is only for the log, compute "
        "it under torch.no_grad()."
    )
    needs = needs_of(LossSums, LossTerms)
    _steps: Counter[str] = fresh(Counter)  # by line
    _whole: set[str] = fresh(set)  # lines whose sum was trained as a whole
    _trained: set[str] = fresh(set)  # names of terms
    _first: dict[str, tuple[Event, LossSum]] = fresh(dict)
    _reported: dict[str, Violation] = fresh(dict)

    def judge(self, event: Event) -> list[Violation]:
        if (terms := observed(event, LossTerms)) is not None:
            self._trained |= {shown(term.name, term.where) for term in terms.terms if term.where}
            return self._withdrawn()
        found = observed(event, LossSums)
        if found is None:
            return []
        self.triggered += 1
        lines: set[str] = set()
        for each in found.sums:
            if each.is_used or not each.dropped:
                self._whole.add(each.where)
            elif each.trained:
                self._first.setdefault(each.where, (event, each))
                lines.add(each.where)
        self._steps.update(lines)
        wrong = {line for line in lines if self._steps[line] >= _STEPS and self._is_dropped(line)}
        new = {line: self._violation(*self._first[line]) for line in wrong - self._reported.keys()}
        self._reported.update(new)
        return [*self._withdrawn(), *(new[line] for line in sorted(new))]

    def _is_dropped(self, line: str) -> bool:
        """Whether no step has trained the sum of a line, or the terms that others leave out."""
        _, found = self._first[line]
        return line not in self._whole and self._trained.isdisjoint(found.dropped)

    def _withdrawn(self) -> list[Violation]:
        over = [line for line in self._reported if not self._is_dropped(line)]
        return [replace(self._reported.pop(line), withdrawn=True) for line in over]

    def _violation(self, event: Event, found: LossSum) -> Violation:
        line = short(found.where)
        dropped, trained = joined(sorted(set(found.dropped))), joined(sorted(set(found.trained)))
        violation = self.violation(
            event,
            subject=Subject(api=Families.BACKWARD),
            symptom=Symptom.STEP_WITHOUT_GRADIENT,
            message=f"the sum of losses in {line} is not trained on: {dropped} gets no gradient",
            expected=f"backward() on the sum of {line}, or on each of its terms",
            observed=f"backward() reaches {trained}, but neither the sum in {line} nor {dropped}",
        )
        return replace(violation, provisional=True)
