"""Gradients are clipped while they are still multiplied by the loss scale."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.readings.training_state import TrainingState
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.rules.step_window.tc205_clip_after_step import _clips
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import listed

_CLIPS = (Families.CLIP_NORM, Families.CLIP_VALUE)


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

    def __init__(self) -> None:
        super().__init__()
        self._scaling = False  # a loss was scaled, its backward() follows
        self._scaled = False  # nothing was unscaled since then
        self._left = frozenset[int]()  # gradients that were not unscaled
        self._clip: CallEvent | None = None
        self._owners: Sequence[str] = ()  # owners of the clipped gradients, if others were unscaled

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
                    found.append(self._violation(self._clip, call, facts))
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

    def _violation(self, clip: CallEvent, step: CallEvent, facts: StepFacts) -> Violation:
        name = clip.api.rpartition(".")[2]
        norm = clip.result.get("value") if isinstance(clip.result, dict) else None
        limit = clip.args.get("max_norm", clip.args.get("clip_value"))
        measured = (
            f" finds a norm of {norm:.4g}" if isinstance(norm, (int, float)) else " is called"
        )
        labels = [self.ledger.holders[owner].label for owner in self._owners]
        whose = f" of {listed(labels)}" if labels else ""
        return proof(
            (self.code, Symptom.WRONG_ORDER),
            facts,
            subject=Subject(api=clip.api),
            message=(
                f"{name}() clips gradients{whose} that are still multiplied by the scale of "
                f"GradScaler; scaler.unscale_() is not called before it{whose and ' for these'}"
            ),
            expected=f"scaler.unscale_(optimizer){whose} before {name}()",
            observed=f"{name}(){measured}, with a limit of {limit}, on scaled gradients{whose}",
            evidence=(clip, step),
        )


def _most(ledger: TrainingState, scaled: frozenset[int]) -> int:
    """How many parameters a list can contain without one of ``scaled``, counting tied ones."""
    others = (ledger.held() | ledger.parameters.keys()) - scaled
    known = ledger.parameters
    return sum(len(known[identity].names) if identity in known else 1 for identity in others)
