"""Names that shared one parameter no longer do. Compares by identity, never by value."""

from __future__ import annotations

from collections import defaultdict

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


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
