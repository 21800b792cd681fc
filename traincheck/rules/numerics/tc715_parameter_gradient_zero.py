"""A parameter whose gradient is exactly zero, step after step. Advice only."""

from __future__ import annotations

from traincheck.facts.step_facts import DISCOVERY, GRADIENTS, Parameter, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.rules.base.streak import Streak, extend
from traincheck.rules.shared.numbers import MATRIX
from traincheck.schema.claims import Needs
from traincheck.schema.events import StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation


class ParameterGradientZero(StepRule, code="TC715", severity="info"):
    """parameter-gradient-zero: backward() reaches a parameter, but with nothing but zeros.

    What it checks:
        The gradients of the parameters that an optimizer holds are not exactly zero for many steps,
        while others of it have some that are not.

    Why it matters:
        Such a parameter does not learn: the units behind it are dead, its output is multiplied by
        zero, or it serves a branch that is never taken.

    Fires on:
        Ten optimizer steps in a row at which the gradient of a parameter is there and all zero.

    Stays quiet on:
        A single step, as the A of LoRA has while B is zero; gradients that are None; embeddings,
        whose rows are used now and then; biases, which a loss of differences cancels; scales in
        modules of torch; models of which all gradients are zero (TC704).

    Fix:
        Look at what is behind the parameter: activations that are off, masks, weights of zero.

    Options:
        steps: steps in a row.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The gradient of {variables} is zero at every step"
    likely_cause = (
        "{observed}: what is behind it is off, clamped, multiplied by zero, or in a branch "
        "that is never taken."
    )
    fix = (
        "Print what the module of {variables} returns in forward, find the mask, clamp, factor "
        "of zero or branch behind it, and remove it; or set requires_grad=False."
    )
    needs: Needs = DISCOVERY | GRADIENTS

    def __init__(self, steps: int = 10) -> None:
        super().__init__()
        self.steps = steps
        self._streaks: dict[int, Streak] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streaks.clear()
            return []
        found: list[Violation] = []
        for moment in facts.updates():
            if not moment.applied:
                continue
            self.triggered += 1
            for identity in moment.applied & self._streaks.keys():
                del self._streaks[identity]
            for identity in moment.present - moment.applied:
                found += self._count(identity, facts)
        if facts.by_hand:
            found += self._by_hand(facts)
        return found

    def _by_hand(self, facts: StepFacts) -> list[Violation]:
        """The program updates parameters itself."""
        self.triggered += 1
        looks = [(i, look.summary) for i, look in facts.gradients.items()]
        for identity in facts.reached & self._streaks.keys():
            del self._streaks[identity]
        zeros = [i for i, summary in looks if summary is not None and summary.zero is True]
        return [found for i in zeros if i not in facts.reached for found in self._count(i, facts)]

    def _count(self, identity: int, facts: StepFacts) -> list[Violation]:
        look = facts.gradients.get(identity)
        parameter = self.ledger.parameters.get(identity)
        if look is not None and "Embedding" in (look.module_class or ""):
            return []
        if parameter is None or not _is_judged(parameter, look):
            return []
        streak = extend(self._streaks, identity, facts.event.step)
        if streak.count != self.steps:
            return []
        name = self.ledger.name(identity)
        return [
            proof(
                (self.code, Symptom.NOT_LEARNING),
                facts,
                step=streak.first,
                subject=Subject(variable=name),
                message=f"the gradient of {name} is exactly zero, step after step",
                expected="a gradient that is not zero now and then",
                observed=f"zero in {streak.count} steps in a row",
                evidence=() if look is None else (look,),
            )
        ]


def _is_judged(parameter: Parameter, look: StateEvent | None) -> bool:
    """A weight, or another parameter of a module of the user's own that is no bias."""
    kind = "" if look is None else look.module_class or ""
    is_own = bool(kind) and not kind.startswith("torch.")
    return len(parameter.shape) >= MATRIX or (is_own and "bias" not in parameter.name.lower())
