"""Training resumes with a new GradScaler. Requires proof that it is a resume."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule
from traincheck.rules.checkpoints.resume import RESUME, Resume
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_DEFAULT = 65536.0  # initial scale of every scaler


class ScalerNotRestored(EventRule, code="TC609"):
    """scaler-not-restored: model and optimizer are resumed, but the loss scale restarts.

    What it checks:
        If model and optimizer are loaded from a file with GradScaler state whose scale is not the
        default, scaler.load_state_dict is called before its first step.

    Why it matters:
        The scaler searches for a scale again. Until it has found one, steps are skipped while
        schedules and averages continue, or small gradients vanish.

    Fires on:
        - A resume that loads everything except the scaler.

    Stays quiet on:
        - Files without a scaler, or with one that still has its initial scale.
        - Fine-tuning from a file that this run does not write.

    Fix:
        Call scaler.load_state_dict(checkpoint["scaler"]).

    Source:
        https://pytorch.org/docs/stable/notes/amp_examples.html
    """

    title = "GradScaler is not restored on resume"
    likely_cause = "The checkpoint holds its state, but scaler.load_state_dict() is not called."
    fix = "Call scaler.load_state_dict() with the saved state before training continues."
    needs = RESUME | Needs(calls=frozenset({Families.SCALER_STEP}))

    def __init__(self) -> None:
        super().__init__()
        self._resume = Resume()
        self._scaler: CheckpointEvent | None = None
        self._used: CallEvent | None = None
        self._is_reported = False

    def judge(self, event: Event) -> list[Violation]:
        self._resume.observe(event)
        if isinstance(event, CheckpointEvent):
            if event.op == "load":
                self._scaler = self._used = None
            elif "GradScaler" in (event.target or ""):
                self._scaler = event
        elif isinstance(event, CallEvent):
            if (event.family or event.api) == Families.SCALER_STEP:
                self._used = self._used or event
        elif isinstance(event, StepEvent):
            return self._step()
        return []

    def _step(self) -> list[Violation]:
        resume, used = self._resume, self._used
        file, part = resume.file, resume.part("scaler")
        if part is None or file is None or used is None or resume.optimizer is None:
            return []
        if resume.model is None:
            return []
        self.triggered += 1
        if self._is_reported or self._scaler is not None or file.path not in resume.saved:
            return []
        if part.get("scale") == _DEFAULT:
            return []
        self._is_reported = True
        return [
            Violation(
                check_id=self.code,
                step=used.step,
                rank=used.rank,
                stage="train",
                subject=Subject(api=Families.SCALER_STEP),
                symptom=Symptom.NOT_RESTORED,
                message=(
                    "GradScaler restarts, although model and optimizer were loaded from "
                    f"{file.path}, which holds its state"
                ),
                expected=f"scaler.load_state_dict(): the scale was {part.get('scale')}",
                observed="scaler.load_state_dict() is not called",
                evidence=(used, file),
            )
        ]
