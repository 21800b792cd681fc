"""Copies of parameters that no longer agree with them."""

from __future__ import annotations

from collections import defaultdict

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import EventRule, Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.parameters.other_tensors import are_masters
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


# Compares by identity, never by value.
class WeightsUntied(EventRule, code="TC110", severity="error"):
    """weights-untied: two names that shared one parameter hold different ones.

    What it checks:
        Names that referred to one parameter object when the model was found, or before a
        load_state_dict, still do so at the end of every step.

    Why it matters:
        The copies drift apart. An output layer tied to the embedding is then trained separately, or
        not at all if only one of the two is in the optimizer.

    Fires on:
        - A layer whose weight is reassigned.
        - load_state_dict(assign=True) with two tensors.
        - Conversions that replace parameters.

    Stays quiet on:
        - Weights that were never tied.
        - Tied weights that are replaced together.
        - Flat parameters whose views share memory.
        - Modules that are removed.

    Fix:
        Tie the weights again after the last assignment: head.weight = embedding.weight.

    Source:
        https://github.com/NVIDIA/Megatron-LM/issues/656, https://github.com/unslothai/unsloth/pull/3711
    """

    title = "{variables} no longer share one parameter"
    likely_cause = (
        "Another tensor was assigned to one of {variables}{where}, e.g. by "
        "load_state_dict(assign=True) or a conversion."
    )
    fix = "Tie the weights again after the assignment, before the optimizer is built."
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}),
        states=frozenset({"parameter@new"}),
        kinds=frozenset({"checkpoint", "step"}),
    )
    _now: dict[str, StateEvent] = fresh(dict)
    _groups: list[set[str]] = fresh(list)
    _is_changed = False

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StateEvent):
            if event.role == "parameter" and event.change in ("new", "replaced", "gone"):
                self._enter(event)
        elif isinstance(event, CheckpointEvent):
            self._is_changed = True
            if event.untied:  # unless they are tied again before the next step
                self._groups.append(set(event.untied))
        elif isinstance(event, StepEvent) and event.counters.get("optimizer_step"):
            self.triggered += bool(self._groups)
            if not self._is_changed:
                return []
            self._is_changed = False
            found: list[Violation] = []
            for group in list(self._groups):
                states = [self._now[name] for name in sorted(group) if name in self._now]
                objects = defaultdict(list)
                for state in states:
                    objects[state.identity].append(state)
                if len(objects) == len(states) > 1:
                    self._groups.remove(group)
                    found += [
                        self.violation(
                            event,
                            stage="train",
                            subject=Subject(variable=state.name),
                            symptom=Symptom.SHARING_LOST,
                            message=f"{state.name}: names that shared one parameter now hold "
                            "different ones",
                            expected="names that shared one parameter still share it",
                            observed="they hold different objects",
                            evidence=tuple(states[:3]),
                        )
                        for state in states
                    ]
            return found
        return []

    def _enter(self, event: StateEvent) -> None:
        self._is_changed = True
        if event.change == "gone":
            self._now.pop(event.name, None)
            return
        self._now[event.name] = event
        if event.change == "new":
            root = event.name.partition(".")[0]
            for name, other in self._now.items():
                is_same = name != event.name and other.identity == event.identity
                if is_same and name.partition(".")[0] == root:
                    self._tie(name, event.name)
                    break

    def _tie(self, name: str, other: str) -> None:
        for group in self._groups:
            if name in group:
                group.add(other)
                return
        self._groups.append({name, other})


_CONFIRMED = 10


class MasterWeightsNotCopiedBack(
    StepRule, code="TC118", severity="error", aliases=("masters-not-copied-back",)
):
    """master-weights-not-copied-back: copies of the parameters are trained, not the model.

    What it checks:
        If a model gets gradients and an optimizer updates copies of its parameters instead, the
        model changes, too.

    Why it matters:
        In manual mixed precision, gradients go to float32 master weights, which the optimizer
        updates. Their values must be copied back to the model. Otherwise the masters move with the
        gradients of the initial weights, and the model that is evaluated and saved is the initial
        one.

    Fires on:
        - Ten steps in a row in which all trainable parameters of a model called in training mode
          get gradients, no optimizer holds them, and they do not change. Meanwhile an optimizer
          changes its own tensors: as many tensors of the same shapes, or flat ones of the same
          size, which belong to no model that was called.

    Stays quiet on:
        - Masters whose values are copied back.
        - Another model of the same shapes that is called, e.g. a student beside its teacher.
        - Frozen models.
        - Models in evaluation mode.

    Fix:
        Copy each master to its parameter after optimizer.step(), under no_grad().

    Source:
        https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/index.html
    """

    title = "Copies of the parameters of {subject} are updated, but {subject} does not change"
    likely_cause = (
        "The optimizer holds master copies of the parameters, and their values are not copied "
        "back after its step: {observed}."
    )
    fix = "Copy each master to its parameter after optimizer.step(){where}, under no_grad()."
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.MODULE}), states=frozenset({"parameter@step"}))
    )
    _streaks: dict[str, Streak] = fresh(dict)
    _called: set[str] = fresh(set)  # models called so far

    def judge(self, facts: StepFacts) -> list[Violation]:
        self._called |= {forward.path for forward in facts.forwards}
        if not facts.is_complete or self.ledger.has_gap:
            self._streaks.clear()
            return []
        owners = {str(moment.call.owner) for moment in facts.updates()}
        stepped = [h for owner, h in self.ledger.holders.items() if owner in owners]
        moving = [h for h in stepped if not facts.changed.isdisjoint(h.ids) and self._is_apart(h)]
        if not moving:
            return []
        idle = {
            root: h
            for root in self._idle(facts)
            for h in moving
            if are_masters(self.ledger, h, root)
        }
        self._streaks = {root: s for root, s in self._streaks.items() if root in idle}
        found = []
        for root, holder in sorted(idle.items()):
            if extend(self._streaks, root, facts.event.step).count == _CONFIRMED:
                steps = [m.call for m in facts.updates() if m.call.owner == holder.event.id]
                count = self._streaks[root].count
                found += self.proven(
                    facts,
                    step=self._streaks[root].first,
                    subject=Subject(module=root),
                    symptom=Symptom.NOT_UPDATED,
                    message=f"{holder.label} updates copies of {root}, but {root} does not change",
                    expected=f"{root} changes with the copies that are updated",
                    observed=f"{holder.label} has stepped {count} times since {root} last changed",
                    evidence=steps[:1],
                )
        return found

    def _is_apart(self, holder: Holder) -> bool:
        """Whether none of its parameters belongs to a model that was called."""
        books = self.ledger.parameters
        return not any(i in books and books[i].root in self._called for i in holder.ids)

    def _idle(self, facts: StepFacts) -> list[str]:
        """Unchanged models whose parameters all get gradients that no optimizer uses."""
        trained: dict[str, set[int]] = {}
        for identity, parameter in self.ledger.parameters.items():
            if parameter.requires_grad:
                trained.setdefault(parameter.root, set()).add(identity)
        used = self.ledger.held() | facts.changed | facts.uncertain
        called = {forward.path for forward in facts.forwards if forward.is_training}
        roots = sorted(called & trained.keys())
        self.triggered += bool(roots)
        return [r for r in roots if trained[r] <= facts.reached and trained[r].isdisjoint(used)]
