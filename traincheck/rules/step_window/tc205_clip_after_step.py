"""Gradients are clipped after the optimizer has already applied them."""

from __future__ import annotations

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CLIPS = (Families.CLIP_NORM, Families.CLIP_VALUE)
_UPDATES = (Families.OPTIMIZER_STEP, Families.SCALER_STEP)
_CONFIRMED = 2
_CONFIRMED_AT_END = 1
_MEASURES_ONLY = 1e4  # a limit that is never reached: the call only measures the norm


class ClipAfterStep(StepRule, code="TC205", severity="error"):
    """clip-after-step: clipping comes after the optimizer step and has no effect.

    What it checks:
        When gradients are clipped, an optimizer step that applies them still follows.

    Why it matters:
        The update uses the unclipped gradients. One bad batch can ruin the model, although the code
        seems to guard against it.

    Fires on:
        - Two iterations in a row in which clip_grad_norm_() or clip_grad_value_() comes after the
          step and nothing was clipped before it. The gradients are then cleared or recomputed.

    Stays quiet on:
        - Clipping before the step.
        - Clipping for a second optimizer whose step follows.
        - A limit so large, or infinite, that the call only measures the norm.
        - Closures.

    Fix:
        Call clip_grad_norm_() between backward() (with GradScaler: unscale_()) and step().

    Source:
        https://github.com/awslabs/graphstorm/issues/1366, https://github.com/VGraphRNN/VGRNN/issues/4
    """

    title = "Gradients are not clipped when the optimizer applies them"
    likely_cause = "{observed}: the call{where} is at the wrong place in the loop."
    fix = "Move the clipping between loss.backward() and optimizer.step()."
    needs = DISCOVERY | GRADIENTS | Needs(calls=frozenset({*_CLIPS, Families.SCALER_STEP}))

    def __init__(self) -> None:
        super().__init__()
        self._stepped = False
        self._clipped = False  # before the step
        self._began = False  # the next iteration has begun: no gradients to clip yet
        self._is_early = False
        self._late: CallEvent | None = None
        self._late_step: int | None = None
        self._first: int | None = None
        self._count = 0
        self._found: list[Violation] = []

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._stepped = self._clipped = False
            self._late, self._count = None, 0
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            found += self._follow(moment, facts)
        return found

    def finish(self) -> list[Violation]:
        """Report a single late clipping if the run ends early."""
        return self._found if self._count >= _CONFIRMED_AT_END else []

    def _follow(self, moment: Moment, facts: StepFacts) -> list[Violation]:
        family = moment.family
        if family in _CLIPS and _clips(moment.call):
            self.triggered += 1
            if not self._stepped:
                self._clipped, self._count, self._found = True, 0, []
            elif not self._clipped:
                self._late, self._late_step = moment.call, facts.event.step
                self._is_early = self._began
        elif family in _UPDATES:
            self._stepped, self._late, self._began = True, None, False
        elif family in (Families.BACKWARD, Families.ZERO_GRAD):
            late, self._late = self._late, None
            self._began |= family == Families.ZERO_GRAD
            if family == Families.BACKWARD:
                self._stepped = self._clipped = False
            if late is not None:
                return self._proved(late, facts)
        return []

    def _proved(self, late: CallEvent, facts: StepFacts) -> list[Violation]:
        self._first = self._late_step if self._count == 0 else self._first
        self._count += 1
        name = late.api.rpartition(".")[2]
        place = "comes after the optimizer has stepped: no step uses the clipped gradients"
        observed = f"{name}() clips gradients that were already applied"
        if self._is_early:
            place = "comes before backward() has computed the gradients"
            observed = (
                f"{name}() finds no gradients: they were cleared, and backward() has not run yet"
            )
        violation = proof(
            (self.code, Symptom.WRONG_ORDER),
            facts,
            step=self._first if self._count <= _CONFIRMED else self._late_step,
            subject=Subject(api=late.api),
            message=f"{name}() {place}",
            expected=f"{name}() between backward() and step()",
            observed=observed,
            evidence=(late,),
        )
        if self._count < _CONFIRMED:
            self._found = [violation]
            return []
        self._found = []
        return [violation]


def _clips(call: CallEvent) -> bool:
    limit = call.args.get("max_norm", call.args.get("clip_value"))
    return isinstance(limit, (int, float)) and limit < _MEASURES_ONLY
