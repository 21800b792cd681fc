"""Softmax over a dim of one element always gives 1."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import SOFTMAXES
from traincheck.schema.values import tensor_summary
from traincheck.schema.words import joined

_MATRIX = 2


class SoftmaxOverOneElement(StepRule, code="TC333", aliases=("softmax-over-one",)):
    """softmax-over-one-element: softmax over one element, so parameters before it cannot learn.

    What it checks:
        Softmax is not taken over a dim of size 1 if parameters that produce one number, e.g. a
        layer with one output, get only zero gradients from it.

    Why it matters:
        The softmax of one number is 1, and its derivative is zero. Attention that scores each
        position then weighs all positions equally, and a classifier with one output always predicts
        1. The rest of the model learns around it, so the loss falls.

    Fires on:
        - Five optimizer steps in a row with such a softmax in which parameters with a dim of size 1
          have a gradient that is all zero. For a matrix of one column, all gradients must be zero.

    Stays quiet on:
        - A softmax over one position, key or expert whose scores come from other parameters.
        - Single steps.
        - Softmax without gradients.

    Fix:
        Take the softmax over the dim of positions (or classes): for scores of shape (batch, time,
        1) that is dim=1. For one output use sigmoid.

    Options:
        - steps: number of steps in a row.

    Source:
        https://github.com/DEEP-PolyU/KEQA_WSDM19/issues/2
    """

    title = "A softmax is taken over one element, so it is always 1"
    likely_cause = "{observed}: the dim may be the wrong one, or there is one output."
    fix = "Take the softmax over the dim of positions or classes. For one output use sigmoid."
    needs: Needs = DISCOVERY | GRADIENTS | Needs(calls=SOFTMAXES)
    steps: int = 5
    _call: CallEvent | None = None  # the first call; some steps may not record calls
    _idle: dict[str, set[int]] = fresh(dict)  # by optimizer, in all its steps in a row
    _streaks: dict[str, Streak] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        self._call = self._call or next(filter(_is_over_one, facts.softmaxes), None)
        if self._call is None or self.is_over:
            return []
        if not facts.is_complete:
            self._streaks.clear()
            return []
        for moment in facts.updates():
            self.triggered += 1
            owner = str(moment.call.owner)
            idle = set(self._without_gradient(moment, self._call))
            if owner in self._streaks:
                idle &= self._idle[owner]
            if not idle:
                self._streaks.pop(owner, None)
                continue
            self._idle[owner] = idle
            streak = extend(self._streaks, owner, facts.event.step)
            if streak.count == self.steps:
                self.is_over = True
                call = self._call
                function, shape = call.api.rpartition(".")[2], list(_shape(call))
                given = f"{function} over dim {call.args.get('dim')} of {shape}"
                return self.proven(
                    facts,
                    step=streak.first,
                    subject=Subject(api=call.api, module=call.module),
                    symptom=Symptom.LOSS_INPUT,
                    message=f"{given} is 1 everywhere; the gradient of "
                    f"{joined(self.ledger.names(idle))} is always zero",
                    expected="a softmax over several elements",
                    observed=f"{given} is 1 everywhere",
                    evidence=(call,),
                )
        return []

    def _without_gradient(self, moment: Moment, call: CallEvent) -> Iterable[int]:
        idle = moment.present - moment.applied
        if len(_shape(call)) == _MATRIX and moment.applied:
            return  # one key, one expert or one position is intended
        for identity in idle:
            parameter = self.ledger.parameters.get(identity)
            if parameter is not None and 1 in parameter.shape:
                yield identity


def _shape(call: CallEvent) -> tuple[int, ...]:
    given = tensor_summary(call.args.get("input"))
    return () if given is None else given.shape


def _is_over_one(call: CallEvent) -> bool:
    """Whether all results are 1 although a sample has more than one element."""
    given, dim = tensor_summary(call.args.get("input")), call.args.get("dim")
    if given is None or not given.requires_grad or not isinstance(dim, int):
        return False
    size = len(given.shape)
    if not -size <= dim < size or given.shape[dim] != 1 or size < _MATRIX:
        return False
    return size == _MATRIX or any(length > 1 for length in given.shape[1:])
