"""Schedulers and gradient scalers that are saved and not loaded."""

from __future__ import annotations

from traincheck.readings.provider import RunStates
from traincheck.rules.base.rule import EventRule
from traincheck.rules.checkpoints.resume import RESUME, Resume
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class SchedulerNotRestored(EventRule, code="TC603", severity="error"):
    """scheduler-not-restored: model and optimizer are resumed, but the schedule restarts.

    What it checks:
        If model and optimizer are loaded from a file with scheduler state, a new scheduler does not
        start from the beginning. Its load_state_dict is called, or it was built with last_epoch.

    Why it matters:
        Warm-up and decay restart at every resume, so the learning rate is not the planned one. The
        constructor also overwrites the learning rate that the optimizer restored.

    Fires on:
        - A resume without scheduler.load_state_dict().

    Stays quiet on:
        - Schedulers built with last_epoch.
        - Checkpoints without scheduler state.
        - Fine-tuning that loads only the model.
        - A scheduler that has been running in the same process.

    Fix:
        Call scheduler.load_state_dict(checkpoint["scheduler"]) after the scheduler is built.

    Source:
        https://github.com/PolymathicAI/the_well/issues/77,
        https://github.com/ultralytics/yolov5/issues/292
    """

    title = "The learning-rate scheduler is not restored on resume"
    likely_cause = (
        "The checkpoint holds the state of a scheduler, but scheduler.load_state_dict() is "
        "never called: the schedule{where} restarts."
    )
    fix = "Call scheduler.load_state_dict() with the saved state before training continues."
    needs = RESUME
    uses = (Resume,)

    def bind(self, run_states: RunStates) -> None:
        self._resume = run_states.of(Resume)

    def judge(self, event: Event) -> list[Violation]:
        resume = self._resume
        if not isinstance(event, StepEvent) or self.is_over:
            return []
        file, model = resume.file, resume.model
        if file is None or model is None or resume.optimizer is None:
            return []
        if resume.part("scheduler") is None:
            return []
        for owner, call in resume.schedules.items():
            if owner in resume.stepped and owner not in resume.continued:
                self.triggered += 1
                if resume.scheduler is None:
                    self.is_over = True
                    cls = call.api.rpartition(".")[0].rpartition(".")[2]
                    return self.found(
                        call,
                        step=event.step,
                        stage="train",
                        subject=Subject(api=call.api.replace(".__init__", ".load_state_dict")),
                        symptom=Symptom.NOT_RESTORED,
                        message=f"{cls} restarts, although model and optimizer were loaded from "
                        f"{file.path}, which holds the state of a scheduler",
                        expected="scheduler.load_state_dict() before training continues",
                        observed=f"{model.target} and its optimizer were loaded, but {cls} was not",
                        evidence=(call, file, model),
                    )
        return []


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
    uses = (Resume,)
    _scaler: CheckpointEvent | None = None
    _used: CallEvent | None = None

    def bind(self, run_states: RunStates) -> None:
        self._resume = run_states.of(Resume)

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CheckpointEvent):
            if event.op == "load":
                self._scaler = self._used = None
            elif "GradScaler" in (event.target or ""):
                self._scaler = event
        elif isinstance(event, CallEvent):
            if (event.family or event.api) == Families.SCALER_STEP:
                self._used = self._used or event
        elif isinstance(event, StepEvent):
            resume, used = self._resume, self._used
            file, part = resume.file, resume.part("scaler")
            if part is None or file is None or used is None or resume.optimizer is None:
                return []
            if resume.model is None:
                return []
            self.triggered += 1
            if self.is_over or self._scaler is not None or file.path not in resume.saved:
                return []
            if part.get("scale") == _DEFAULT:
                return []
            self.is_over = True
            return self.found(
                used,
                stage="train",
                subject=Subject(api=Families.SCALER_STEP),
                symptom=Symptom.NOT_RESTORED,
                message="GradScaler restarts, although model and optimizer were loaded from "
                f"{file.path}, which holds its state",
                expected=f"scaler.load_state_dict(): the scale was {part.get('scale')}",
                observed="scaler.load_state_dict() is not called",
                evidence=(used, file),
            )
        return []
