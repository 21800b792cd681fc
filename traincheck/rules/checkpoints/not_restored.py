"""Optimizers, schedulers and gradient scalers that are saved and not loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from traincheck.readings.provider import RunStates
from traincheck.rules.base.rule import EventRule
from traincheck.rules.checkpoints.resume import RESUME, Resume
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


# Requires proof that it is a resume.
class OptimizerNotRestored(EventRule, code="TC602", severity="error"):
    """optimizer-not-restored: the model is resumed from a checkpoint, but the optimizer is not.

    What it checks:
        A resume that loads the model from a file with optimizer state also calls the optimizer's
        load_state_dict. It counts as a resume if training continues and the run writes the same
        file. The same holds if the run writes the optimizer state into a separate file beside it.

    Why it matters:
        Momentum and second moments start at zero. The first steps after every resume are too large
        and in a wrong direction. With frequent restarts, training makes no progress.

    Fires on:
        - A resume that loads only the model.
        - A resume that runs before the optimizer exists.
        - An optimizer that is created again, with the same settings, after its state was loaded.
        - An optimizer that is loaded twice, the second time with the state of another optimizer
          that is never loaded.

    Stays quiet on:
        - Fine-tuning from a checkpoint of another run.
        - An optimizer with other parameters or another learning rate.
        - A rollback to the best model with the optimizer that has trained so far.
        - Checkpoints without optimizer state.
        - Loading for evaluation.
        - A file of initial weights that the run itself has written.

    Fix:
        Call optimizer.load_state_dict(checkpoint["optimizer"]) after the optimizer is built.

    Source:
        https://github.com/LibreYOLO/libreyolo/pull/277,
        https://github.com/NVIDIA-NeMo/Automodel/issues/763
    """

    title = "The optimizer is not restored on resume"
    title_of_several = "{optimizer} is not restored on resume"
    likely_cause = (
        "The checkpoint holds the state of an optimizer, but optimizer.load_state_dict() is "
        "never called, or was called before this optimizer was built{where}."
    )
    fix = "Call optimizer.load_state_dict() with the saved state before training continues."
    fix_of_several = (
        "Call load_state_dict() of {optimizer} with its saved state before training continues."
    )
    needs = RESUME
    uses = (Resume,)

    def bind(self, run_states: RunStates) -> None:
        self._resume = run_states.of(Resume)

    def judge(self, event: Event) -> list[Violation]:
        resume = self._resume
        if not isinstance(event, StepEvent) or self.is_over:
            return []
        found, file = resume.optimizer_state(), resume.file
        if found is None or file is None or resume.model is None or not resume.stepped:
            return []
        holder, part = found
        self.triggered += 1
        if file.path not in resume.saved or not part["entries"]:
            return []
        given_up = [load for owner, load in resume.loaded.items() if owner not in resume.stepped]
        parts = resume.parts("optimizer")
        for owner, created in resume.first_steps.items():
            # A state was loaded into a known optimizer before this one was created
            before = (one for one in given_up if one.owner and one.time_ns < created.time_ns)
            replaced = next(before, None)
            twice = None if owner in resume.loaded else _twice(resume)
            is_like = any(_is_like(created, one) for one in (parts if twice else [part]))
            if is_like and (replaced or twice or not resume.loaded):
                self.is_over = True
                loads = (file, holder, replaced or twice or resume.model)
                violation = self._violation(owner, created, loads, resume.stepped[owner])
                return [
                    _of_several(violation, owner, created) if len(resume.stepped) > 1 else violation
                ]
        return []

    def _violation(
        self,
        owner: str,
        created: OptimizerEvent,
        loads: tuple[CheckpointEvent, CheckpointEvent, CheckpointEvent],
        step: CallEvent,
    ) -> Violation:
        file, holder, loaded = loads
        held = "which holds the state of an optimizer"
        if holder is not file:
            held = f"and {holder.path}, in which the run saves its optimizer state, was never read"
        cls = created.cls.rpartition(".")[2]
        return self.violation(
            step,
            stage="train",
            subject=Subject(api=f"{created.cls}.load_state_dict"),
            symptom=Symptom.NOT_RESTORED,
            message=f"{owner} ({cls}) steps with an empty state, although the model was loaded "
            f"from {file.path}, {held}",
            expected="optimizer.load_state_dict() before training continues",
            observed=f"{loaded.owner or loaded.target} was loaded, but {owner} ({cls}) was not",
            evidence=(created, holder, loaded, step),
        )


def _twice(resume: Resume) -> CheckpointEvent | None:
    """A second load of the same optimizer, from a file with the states of several."""
    known = sorted(owner for owner in resume.again if owner is not None)
    return resume.loaded[known[0]] if known and len(resume.parts("optimizer")) > 1 else None


def _of_several(found: Violation, owner: str, created: OptimizerEvent) -> Violation:
    """Name the optimizer, because others may have been restored."""
    cause = (
        "The checkpoint holds its state, but load_state_dict() of {optimizer} is never called, or "
        "was called before it was built{where}: {observed}."
    )
    return replace(
        found, optimizer=f"{owner} ({created.cls.rpartition('.')[2]})", likely_cause=cause
    )


def _is_like(created: OptimizerEvent, part: Mapping[str, Any]) -> bool:
    """Whether an optimizer was built like the saved one."""
    rates = [group.hyper.get("lr") for group in created.groups]
    count = sum(len(group.params) for group in created.groups)
    return count == part["params"] and (not part["lr"] or rates == part["lr"])


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
