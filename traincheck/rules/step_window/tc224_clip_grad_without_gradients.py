"""The clipped parameters have no gradients, while other gradients are applied."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings import recorded
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import Streak, extend
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 3


class ClipGradWithoutGradients(
    StepRule, code="TC224", severity="error", aliases=("clips-no-gradient",)
):
    """clip-grad-without-gradients: the clipped parameters have no gradients.

    What it checks:
        If an optimizer applies nonzero gradients, the norm that clip_grad_norm_() found before is
        not zero either.

    Why it matters:
        The update uses unclipped gradients. One bad batch can ruin the model, although the code
        seems to guard against it.

    Fires on:
        - Three steps in a row in which everything clipped between backward() and the step has norm
          zero. Examples: the parameters of another model or of a copy, or a generator such as
          model.parameters() that was created before the loop and is empty after its first use.

    Stays quiet on:
        - Parts that are clipped separately, if any of them has gradients.
        - Optimizers without gradients.
        - Clipping that comes after the step (TC205).
        - Steps that are skipped.

    Fix:
        Pass the parameters that the optimizer holds, in every call.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """

    title = "The clipped parameters have no gradients"
    likely_cause = (
        "clip_grad_norm_(){where} gets parameters that are not trained, or an exhausted "
        "generator: {observed}."
    )
    fix = "Pass model.parameters() of the trained model, called again for every clipping."
    needs = DISCOVERY | GRADIENTS | Needs(calls=frozenset({Families.CLIP_NORM}))

    def __init__(self) -> None:
        super().__init__()
        self._streaks: dict[str, Streak] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streaks.clear()
            return []
        clipped = _clipped(facts.moments)
        self.triggered += bool(clipped)
        in_vain = [
            pair for pair in clipped if not any(recorded.clipped_norm(call) for call in pair[0])
        ]
        if not in_vain:
            if clipped:
                self._streaks.clear()
            return []
        calls, owner = in_vain[0]
        streak = extend(self._streaks, Families.CLIP_NORM, facts.event.step)
        if streak.count < _CONFIRMED:
            return []
        step = streak.at(_CONFIRMED, facts.event.step)
        call = calls[0]
        label = self.ledger.holders[owner].label
        return [
            self.proof(
                facts,
                step=step,
                subject=Subject(api=call.api),
                symptom=Symptom.WRONG_ORDER,
                message=f"clip_grad_norm_() finds no gradient, but {label} applies some",
                expected="the norm of the gradients that the optimizer applies",
                observed=f"the norm is 0 in each step, while {label} applies nonzero gradients",
                evidence=(call,),
            )
        ]


def _clipped(moments: Sequence[Moment]) -> list[tuple[list[CallEvent], str]]:
    """Optimizers that apply gradients, with the clipping calls since the last backward pass."""
    found: list[tuple[list[CallEvent], str]] = []
    calls: list[CallEvent] = []
    for moment in moments:
        if moment.family == Families.BACKWARD:
            calls = []
        elif moment.family == Families.CLIP_NORM:
            calls = [*calls, moment.call]
        elif moment.family == Families.OPTIMIZER_STEP and moment.applied and calls:
            found.append((calls, str(moment.call.owner)))
    return [
        (calls, owner)
        for calls, owner in found
        if None not in (recorded.clipped_norm(c) for c in calls)
    ]
