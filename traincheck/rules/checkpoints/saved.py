"""State that is saved wrongly: as references, or in part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, OptimizerEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined


class StateNotCopied(EventRule, code="TC604", severity="error"):
    """state-not-copied: a model loads its own live tensors, so nothing changes.

    What it checks:
        A state passed to load_state_dict after training has started does not consist of the tensors
        of the model that loads it.

    Why it matters:
        state_dict() returns references. A "best" state stored without a copy changes with every
        step. Restoring it restores nothing: the last weights are evaluated and saved as the best. A
        target network that loads its own state never follows the trained network.

    Fires on:
        The rule distinguishes the cases by writes to the tensors between state_dict() and
        load_state_dict(), and by whether an optimizer holds the model's tensors.

        - best = model.state_dict(), restored later by model.load_state_dict(best).
        - target.load_state_dict(target.state_dict()) instead of the state of another model.
        - target = model without a copy, followed by target.load_state_dict(model.state_dict()).

    Stays quiet on:
        - States that were cloned, deep-copied or saved to a file.
        - States of another model.
        - Loads before the first step.

    Fix:
        - Store copy.deepcopy(model.state_dict()).
        - Load the state of the trained model.
        - Create a second model with copy.deepcopy(model).

    Source:
        https://pytorch.org/tutorials/beginner/saving_loading_models.html,
        https://github.com/thesouther/MARL/issues/8
    """

    title = "{subject} loads its own tensors: nothing is restored"
    likely_cause = (
        "load_state_dict(){where} receives the model's own tensors: a state_dict() without a "
        "copy, which changes with every step, or the current state of the model itself."
    )
    fix = "Store copy.deepcopy(model.state_dict()), or save it to a file."
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}),
        kinds=frozenset({"checkpoint", "optimizer", "step"}),
    )
    _has_stepped = False
    _held: dict[str, frozenset[str]] = fresh(dict)  # optimizer -> models with parameters in it

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
        """Explain why the state is the model's own."""
        if load.is_stale is not False:
            return _kept(violation, load) if load.made else violation
        target = load.target or "the model"
        trained = frozenset[str]().union(*self._held.values())
        if target.partition(".")[0] in trained:
            # A trained model loads its own current state.
            return replace(
                violation,
                title="{subject} loads its own current state: nothing changes",
                likely_cause="Both sides of load_state_dict(){where} are one model, which an "
                "optimizer trains: two names for one object (target = model), or the same name "
                "twice.",
                fix=f"Make the second model another object with copy.deepcopy() of {target}, and "
                "load the state of one into the other.",
            )
        # A model that no optimizer trains loads its own current state.
        others = joined(sorted(trained)) or "the trained model"
        return replace(
            violation,
            title="{subject} loads its own state: nothing changes",
            likely_cause=f"load_state_dict(){{where}} gives {target} the state_dict() of {target} "
            f"itself, so it never changes; the optimizer trains {others}.",
            fix=f"Load the state of the model to follow (of {others}) into {target}.",
        )

    def _violation(self, event: CheckpointEvent) -> Violation:
        return self.violation(
            event,
            subject=Subject(module=event.target),
            symptom=Symptom.NOT_RESTORED,
            message=f"the state passed to {event.target}.load_state_dict consists of the model's "
            f"own tensors ({event.shared} of {event.entries}), so nothing is restored",
            expected="a copy of an earlier state, or the state of another model",
            observed=f"{event.shared} tensors share the memory of {event.target} itself",
        )


def _kept(violation: Violation, load: CheckpointEvent) -> Violation:
    """The state was made in an earlier step and has changed with the model since."""
    line = short(str(load.made))
    return replace(
        violation,
        likely_cause=(
            f"The state was stored by state_dict() ({line}) without a copy, so it changed with "
            "every step; load_state_dict(){where} loads the current weights."
        ),
    )


class OptimizerSavedInPart(EventRule, code="TC605"):
    """optimizer-saved-in-part: the saved state of an optimizer omits parameters.

    What it checks:
        The optimizer state in a saved file lists as many parameters as an optimizer of the run
        holds.

    Why it matters:
        Omitted parameters have no momentum after a resume, or the state cannot be loaded at all.
        This shows only after the run that saved it has ended.

    Fires on:
        - An engine that stores the parameters that required grad at its creation, while the
          optimizer holds all of them.

    Stays quiet on:
        - States as returned by optimizer.state_dict().
        - Files of another program that are written again.
        - Sharded optimizers, which hold a part of the saved state.

    Fix:
        Save optimizer.state_dict() unchanged, and load the file once to verify that it matches.

    Source:
        https://github.com/deepspeedai/DeepSpeed/issues/6771
    """

    title = "The saved state of the optimizer omits parameters"
    title_of_several = "A saved state has fewer parameters than any optimizer"
    likely_cause = (
        "The saved state{where} may have been built from a list that is not the optimizer's."
    )
    fix = "Save optimizer.state_dict() unchanged."
    fix_of_several = "Save the state_dict() of each optimizer unchanged."
    needs = Needs(kinds=frozenset({"checkpoint", "optimizer", "step"}))
    _held: dict[str, tuple[int, OptimizerEvent]] = fresh(dict)

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, OptimizerEvent):
            self._held[event.id] = (sum(len(group.params) for group in event.groups), event)
        elif isinstance(event, CheckpointEvent) and event.op == "save" and self._held:
            for part in event.parts.values():
                if isinstance(part, Mapping) and part.get("kind") == "optimizer":
                    listed = part.get("params")
                    if not isinstance(listed, int) or not listed:
                        return []
                    self.triggered += 1
                    counts = [count for count, _ in self._held.values()]
                    if self.is_over or listed >= min(counts):
                        return []
                    self.is_over = True
                    count, optimizer = min(self._held.values(), key=lambda held: held[0])
                    name = optimizer.cls.rpartition(".")[2]
                    return self.found(
                        event,
                        subject=Subject(api=optimizer.cls),
                        symptom=Symptom.NOT_RESTORED,
                        message=f"{event.path or 'the file'} holds the state of {listed} "
                        f"parameters, but {name} holds {count}",
                        expected=f"the {count} parameters of {name}",
                        observed=f"{listed} parameters",
                        evidence=(event, optimizer),
                        optimizer=f"{optimizer.id} ({name})" if len(self._held) > 1 else "",
                    )
        return []
