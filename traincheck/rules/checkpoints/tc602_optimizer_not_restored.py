"""Training resumes with a new optimizer state. Requires proof that it is a resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from traincheck.readings.provider import RunStates
from traincheck.rules.base.rule import EventRule
from traincheck.rules.checkpoints.resume import RESUME, Resume
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation


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
