"""TC604: a model is given back its own tensors instead of a copy. Judges single loads."""

from __future__ import annotations

from traincheck.rules._single import SingleEvents
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StepEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation


class StateNotCopied:
    """TC604 state-not-copied: the state that is to be restored is the model's own, live tensors.

    What it checks:
        A state given to load_state_dict after training has begun does not consist of the very
        tensors of the model that loads it.

    Why it matters:
        state_dict() returns references. A "best" state kept without a copy changes with every step,
        so restoring it restores nothing: the last weights are evaluated and saved as the best.

    Fires on:
        best = model.state_dict(), restored later by model.load_state_dict(best).

    Stays quiet on:
        States that were cloned, deep-copied or saved to a file; states of another model; loads
        before the first step.

    Fix:
        Keep copy.deepcopy(model.state_dict()).

    Source:
        https://pytorch.org/tutorials/beginner/saving_loading_models.html
    """

    info = CheckInfo(
        check_id="TC604",
        kind="rule",
        code="TC604",
        severity="error",
        title="{subject} is given back its own tensors: nothing is restored",
        likely_cause=(
            "The state was kept by state_dict() without a copy, so it followed every step; "
            "load_state_dict(){where} restores what is there already."
        ),
        fix="Keep copy.deepcopy(model.state_dict()), or save it to a file.",
    )
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"checkpoint", "step"})
    )

    def monitor(self) -> OwnTensors:
        return OwnTensors()


class OwnTensors(SingleEvents):
    """Looks at loads that follow optimizer steps."""

    def __init__(self) -> None:
        super().__init__()
        self._has_stepped = False

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent):
            self._has_stepped = True
        if isinstance(event, StepEvent) or not isinstance(event, CheckpointEvent):
            return []
        if not self._has_stepped or event.matched is None:
            return []
        self.triggered += 1
        if not event.shared or event.changed != 0:
            return []
        return [
            Violation(
                check_id="TC604",
                step=event.step,
                rank=event.rank,
                stage=event.stage,
                subject=Subject(module=event.target),
                symptom=Symptom.NOT_RESTORED,
                message=(
                    f"the state given to {event.target}.load_state_dict is made of the model's "
                    f"own tensors ({event.shared} of {event.entries}), so nothing is restored"
                ),
                expected="a copy of an earlier state",
                observed=f"{event.shared} tensors are the memory of {event.target} itself",
                evidence=(event,),
            )
        ]
