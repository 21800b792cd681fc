"""A model is given back its own tensors instead of a copy. Judges single loads."""

from __future__ import annotations

from dataclasses import replace

from traincheck.rules.base.event_rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, OptimizerEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined


class StateNotCopied(EventRule, code="TC604", severity="error"):
    """state-not-copied: a model loads its own, live tensors, so that nothing changes.

    What it checks:
        A state given to load_state_dict after training has begun does not consist of the very
        tensors of the model that loads it.

    Why it matters:
        state_dict() returns references. A "best" state kept without a copy changes with every step,
        so restoring it restores nothing: the last weights are evaluated and saved as the best. A
        target network that loads its own state never follows the network that learns.

    Fires on:
        best = model.state_dict(), restored later by model.load_state_dict(best);
        target.load_state_dict(target.state_dict()), where the state of another model is meant;
        target = model without a copy, so that target.load_state_dict(model.state_dict()) loads what
        is there. Which of them it is follows from whether the tensors were written to between
        state_dict() and load_state_dict(), and whether an optimizer holds those of the model.

    Stays quiet on:
        States that were cloned, deep-copied or saved to a file; states of another model; loads
        before the first step.

    Fix:
        Keep copy.deepcopy(model.state_dict()); load the state of the model that is trained; make a
        second model by copy.deepcopy(model).

    Source:
        https://pytorch.org/tutorials/beginner/saving_loading_models.html,
        https://github.com/thesouther/MARL/issues/8
    """

    title = "{subject} is given back its own tensors: nothing is restored"
    likely_cause = (
        "load_state_dict(){where} is given the model's own tensors: a state that state_dict() "
        "made without a copy, which follows every step, or that of the model itself."
    )
    fix = "Keep copy.deepcopy(model.state_dict()), or save it to a file."
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}),
        kinds=frozenset({"checkpoint", "optimizer", "step"}),
    )

    def __init__(self) -> None:
        super().__init__()
        self._has_stepped = False
        self._held: dict[str, frozenset[str]] = {}  # optimizer -> models with parameters in it

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent):
            self._has_stepped = True
        if isinstance(event, OptimizerEvent):
            names = (name for group in event.groups for name in group.params)
            self._held[event.id] = frozenset(name.partition(".")[0] for name in names)
        if not isinstance(event, CheckpointEvent):
            return []
        if not self._has_stepped or event.matched is None:
            return []
        self.triggered += 1
        if not event.shared or event.changed != 0:
            return []
        return [self._cause(self._violation(event), event)]

    def _cause(self, violation: Violation, load: CheckpointEvent) -> Violation:
        """Say why the state is the model's own."""
        if load.is_stale is not False:
            return _kept(violation, load) if load.made else violation
        target = load.target or "the model"
        trained = frozenset[str]().union(*self._held.values())
        if target.partition(".")[0] in trained:
            return _same_object(violation, target)
        return _own_state(violation, target, trained)

    def _violation(self, event: CheckpointEvent) -> Violation:
        return self.violation(
            event,
            subject=Subject(module=event.target),
            symptom=Symptom.NOT_RESTORED,
            message=f"the state given to {event.target}.load_state_dict is made of the model's "
            f"own tensors ({event.shared} of {event.entries}), so nothing is restored",
            expected="a copy of an earlier state, or the state of another model",
            observed=f"{event.shared} tensors are the memory of {event.target} itself",
        )


def _kept(violation: Violation, load: CheckpointEvent) -> Violation:
    """The state was made in an earlier step, and has followed the model since."""
    line = str(load.made).rpartition("/")[2]
    return replace(
        violation,
        likely_cause=(
            f"The state was kept by state_dict() ({line}) without a copy, so it followed every "
            "step; load_state_dict(){where} restores what is there already."
        ),
    )


def _same_object(violation: Violation, target: str) -> Violation:
    """A trained model loads a state that was just made of it."""
    return replace(
        violation,
        title="{subject} loads a state that was just taken from it: nothing changes",
        likely_cause=(
            "Both sides of load_state_dict(){where} are one model, which an optimizer trains: two "
            "names for one object (target = model), or the same name twice."
        ),
        fix=(
            f"Make the second model another object, by copy.deepcopy() of {target}, and load "
            "the state of the one into the other."
        ),
    )


def _own_state(violation: Violation, target: str, trained: frozenset[str]) -> Violation:
    """A model that no optimizer trains loads a state that was just made of it."""
    others = joined(sorted(trained)) or "the model that is trained"
    return replace(
        violation,
        title="{subject} loads its own state: nothing changes",
        likely_cause=(
            f"load_state_dict(){{where}} gives {target} the state_dict() of {target} itself, so it "
            f"stays as it was made; the optimizer trains {others}."
        ),
        fix=f"Load the state of the model to be followed (of {others}) into {target}.",
    )
