"""TC206: gradients are clipped while they are still multiplied by the loss scale."""

from __future__ import annotations

from traincheck.rules._ledger import DISCOVERY, GRADIENTS, StepFacts, StepMonitor, proof
from traincheck.rules.tc205_clip_after_step import _clips
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation

_CLIPS = (Families.CLIP_NORM, Families.CLIP_VALUE)


class ClipScaledGradients:
    """TC206 clip-scaled-gradients: clipping comes before GradScaler has unscaled the gradients.

    What it checks:
        Between the backward() of a scaled loss and clipping, scaler.unscale_() is called.

    Why it matters:
        The norm is that of gradients multiplied by the scale (65536, say), so that every gradient
        is clipped, and then divided by the scale again: what is applied is almost nothing.

    Fires on:
        clip_grad_norm_() or clip_grad_value_() between scaler.scale(loss).backward() and
        scaler.step(), without scaler.unscale_().

    Stays quiet on:
        unscale_() before clipping; a scaler that is disabled; a limit so large that the call only
        measures; clipping after the step (TC205).

    Fix:
        Call scaler.unscale_(optimizer) before clipping.

    Source:
        https://github.com/milesial/Pytorch-UNet/issues/468, https://github.com/pytorch/examples/issues/1196
    """

    info = CheckInfo(
        check_id="TC206",
        kind="rule",
        code="TC206",
        severity="error",
        title="Gradients are clipped while they are scaled",
        likely_cause=(
            "scaler.unscale_(optimizer) is missing before the clipping{where}: {observed}."
        ),
        fix="Call scaler.unscale_(optimizer) between backward() and the clipping.",
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({*_CLIPS, Families.SCALE, Families.UNSCALE, Families.SCALER_STEP}))
    )

    def monitor(self) -> ScaledClip:
        return ScaledClip()


class ScaledClip(StepMonitor):
    """Knows whether the gradients that there are carry the scale."""

    def __init__(self) -> None:
        super().__init__()
        self._scaling = False  # a loss was scaled, its backward() is to come
        self._scaled = False
        self._clip: CallEvent | None = None

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_whole:
            self._scaling = self._scaled = False
            self._clip = None
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            call, family = moment.call, moment.family
            if family == Families.SCALE:
                self._scaling = call.args.get("enabled") is not False
            elif family == Families.BACKWARD:
                self._scaled, self._scaling, self._clip = self._scaling, False, None
            elif family == Families.UNSCALE:
                self._scaled = False
            elif family in _CLIPS:
                self.triggered += self._scaled or self._scaling
                if self._scaled and _clips(call):
                    self._clip = call
            elif family == Families.SCALER_STEP:
                if self._clip is not None and call.args.get("enabled") is not False:
                    found.append(self._violation(self._clip, call, facts))
                self._clip = None
                self._scaled = False
        return found

    def _violation(self, clip: CallEvent, step: CallEvent, facts: StepFacts) -> Violation:
        name = clip.api.rpartition(".")[2]
        norm = clip.result.get("value") if isinstance(clip.result, dict) else None
        limit = clip.args.get("max_norm", clip.args.get("clip_value"))
        found = f" finds a norm of {norm:.4g}" if isinstance(norm, (int, float)) else " is called"
        return proof(
            ("TC206", Symptom.WRONG_ORDER),
            facts,
            subject=Subject(api=clip.api),
            message=(
                f"{name}() clips gradients that are still multiplied by the scale of GradScaler; "
                "scaler.unscale_() is not called before it"
            ),
            expected=f"scaler.unscale_(optimizer) before {name}()",
            observed=f"{name}(){found}, with a limit of {limit}, on scaled gradients",
            evidence=(clip, step),
        )
