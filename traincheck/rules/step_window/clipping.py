"""Clipping that comes after the step, or before gradients are unscaled."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings import recorded
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.readings.training_state import TrainingState
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import listed

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
    _stepped = False
    _clipped = False  # before the step
    _began = False  # the next iteration has begun: no gradients to clip yet
    _is_early = False
    _late: CallEvent | None = None
    _late_step: int | None = None
    _first: int | None = None
    _count = 0
    _found: list[Violation] = fresh(list)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._stepped = self._clipped = False
            self._late, self._count = None, 0
            return []
        found: list[Violation] = []
        for moment in facts.moments:
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
                    found += self._proved(late, facts)
                    continue
        return found

    def finish(self) -> list[Violation]:
        """Report a single late clipping if the run ends early."""
        return self._found if self._count >= _CONFIRMED_AT_END else []

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
        violation = self.proof(
            facts,
            step=self._first if self._count <= _CONFIRMED else self._late_step,
            subject=Subject(api=late.api),
            symptom=Symptom.WRONG_ORDER,
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
    limit = recorded.clip_limit(call)
    return limit is not None and limit < _MEASURES_ONLY


class ClipScaledGradients(StepRule, code="TC206", severity="error"):
    """clip-scaled-gradients: clipping comes before GradScaler has unscaled the gradients.

    What it checks:
        Between the backward() of a scaled loss and clipping, scaler.unscale_() is called for each
        optimizer whose gradients are clipped.

    Why it matters:
        The norm is that of gradients multiplied by the scale (e.g. 65536), so every gradient is
        clipped and then divided by the scale again. The applied update is almost zero.

    Fires on:
        - clip_grad_norm_() or clip_grad_value_() between scaler.scale(loss).backward() and
          scaler.step(), without scaler.unscale_().
        - scaler.unscale_() for one of several optimizers, if the clipped list has more
          parameters than there are without scaled gradients.

    Stays quiet on:
        - unscale_() before clipping, for all optimizers whose gradients are clipped.
        - A generator of parameters if another optimizer was unscaled: its contents are unknown.
        - A scaler that is disabled.
        - A limit so large that the call only measures the norm.
        - Clipping after the step (TC205).

    Fix:
        Call scaler.unscale_(optimizer) before clipping.

    Source:
        https://github.com/milesial/Pytorch-UNet/issues/468, https://github.com/pytorch/examples/issues/1196
    """

    title = "Gradients are clipped while they are scaled"
    likely_cause = "scaler.unscale_(optimizer) is missing before the clipping{where}: {observed}."
    fix = "Call scaler.unscale_(optimizer) between backward() and the clipping."
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({*_CLIPS, Families.SCALE, Families.UNSCALE, Families.SCALER_STEP}))
    )
    _scaling = False  # a loss was scaled, its backward() follows
    _scaled = False  # nothing was unscaled since then
    _left = frozenset[int]()  # gradients that were not unscaled
    _clip: CallEvent | None = None
    _owners: Sequence[str] = ()  # owners of the clipped gradients, if others were unscaled

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._scaling = self._scaled = False
            self._left, self._clip = frozenset(), None
            return []
        return [found for moment in facts.moments for found in self._follow(moment, facts)]

    def _follow(self, moment: Moment, facts: StepFacts) -> list[Violation]:
        call, family = moment.call, moment.family
        found: list[Violation] = []
        self._left -= moment.cleared
        if family == Families.SCALE:
            self._scaling = call.args.get("enabled") is not False
        elif family == Families.BACKWARD:
            self._left = self._left | moment.reached if self._scaling else frozenset()
            self._scaled, self._scaling, self._clip = self._scaling, False, None
        elif family == Families.UNSCALE:
            self._unscale(call)
        elif family in _CLIPS:
            owners = () if self._scaled else self._clipped(call)
            self.triggered += self._scaled or self._scaling or bool(self._left)
            if (self._scaled or owners) and _clips(call):
                self._clip, self._owners = call, owners
        elif family == Families.SCALER_STEP:
            if self._clip is not None and (not self._owners or call.owner in self._owners):
                if call.args.get("enabled") is not False:
                    clip = self._clip
                    name = clip.api.rpartition(".")[2]
                    norm, limit = recorded.clipped_norm(clip), recorded.clip_limit(clip)
                    measured = " is called" if norm is None else f" finds a norm of {norm:.4g}"
                    labels = [self.ledger.holders[owner].label for owner in self._owners]
                    whose = f" of {listed(labels)}" if labels else ""
                    found += self.proven(
                        facts,
                        subject=Subject(api=clip.api),
                        symptom=Symptom.WRONG_ORDER,
                        message=f"{name}() clips gradients{whose} that are still multiplied by the "
                        "scale of GradScaler; scaler.unscale_() is not called before "
                        f"it{whose and ' for these'}",
                        expected=f"scaler.unscale_(optimizer){whose} before {name}()",
                        observed=f"{name}(){measured}, with a limit of {limit}, on scaled "
                        f"gradients{whose}",
                        evidence=(clip, call),
                    )
                self._clip = None
            self._unscale(call)
        return found

    def _unscale(self, call: CallEvent) -> None:
        self._scaled = False
        holder = self.ledger.holders.get(str(call.owner))
        self._left = frozenset() if holder is None else self._left - holder.ids

    def _clipped(self, clip: CallEvent) -> list[str]:
        """Optimizers with scaled gradients, if the clipped list must contain some of these."""
        count = clip.args.get("parameters")
        if not self._left or not isinstance(count, int) or count <= _most(self.ledger, self._left):
            return []
        holders = self.ledger.holders.items()
        return [owner for owner, h in holders if not h.ids.isdisjoint(self._left)]


def _most(ledger: TrainingState, scaled: frozenset[int]) -> int:
    """How many parameters a list can contain without one of ``scaled``, counting tied ones."""
    others = (ledger.held() | ledger.parameters.keys()) - scaled
    known = ledger.parameters
    return sum(len(known[identity].names) if identity in known else 1 for identity in others)
