"""Decide which names stand for one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.programs import ProgramName
from traincheck.facts.steps import is_judged
from traincheck.facts.variables import Variables
from traincheck.relations.base import SATISFIED, counterexample
from traincheck.relations.example_cache import Examples
from traincheck.relations.phrasing import names_text
from traincheck.relations.sharing.proposer import APART, OWN, groups_of
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.parameter_names import is_unowned
from traincheck.schema.torch_api import Families


class SharingDecider:
    """Decides when a training step ends."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [claim.params for claim in claims]
        for params in self._claims:
            is_apart = params.get("is") == APART and "model" in params
            if not ("names" in params or params.get("is") == OWN or is_apart):
                raise ValueError(f"nothing is known of {dict(params)}")
        self._program = ProgramName()
        self._variables = Variables()
        self._optimizers: dict[str, OptimizerEvent] = {}
        self._stepped: set[str] = set()
        self._has_gap = False  # steps were not recorded, in which variables may have come
        self._last: Examples = ()

    def observe(self, event: Event) -> Examples:
        if isinstance(event, StateEvent):
            self._variables.observe(event)
        elif isinstance(event, OptimizerEvent):
            self._variables.hold(event)
            self._optimizers[event.id] = event
        elif isinstance(event, CallEvent):
            if event.family == Families.OPTIMIZER_STEP and event.owner is not None:
                self._stepped.add(event.owner)
        elif isinstance(event, StepEvent):
            return self._step(event)
        else:
            self._program.observe(event)
        return ()

    def _step(self, event: StepEvent) -> Examples:
        self._has_gap |= event.is_gap
        found: Examples = ()
        if is_judged(event) and not self._has_gap:
            found = tuple(
                (index, example)
                for index, params in enumerate(self._claims)
                if self._program.fits(params)
                for example in self._judge(params, event)
            )
        self._stepped.clear()
        if found != self._last or any(not example.holds for _, example in found):
            self._last = found
        return self._last  # the same object for the same answer

    def finish(self) -> Examples:
        """Nothing: an unfinished step proves nothing."""
        return ()

    def _judge(self, params: Mapping[str, Any], event: StepEvent) -> Iterator[Example]:
        if "names" in params:
            return self._tied(params["names"], event)
        return self._apart(params["model"], event) if params["is"] == APART else self._own(event)

    def _tied(self, names: Sequence[str], event: StepEvent) -> Iterator[Example]:
        known = self._variables.by_role["parameter"]
        if not all(name in known for name in names):
            return
        first, *others = names
        apart = [name for name in others if known[name].identity != known[first].identity]
        for name in apart:
            expected = f"{name} is one tensor, shared with {first}"
            yield _negative(event, name, expected, f"{first} and {name} are two tensors")
        if not apart:
            yield SATISFIED

    def _apart(self, model: str, event: StepEvent) -> Iterator[Example]:
        known = self._variables.by_role["parameter"].values()
        groups = groups_of(variable for variable in known if variable.model == model)
        shared = next((names for names in groups if len(names) > 1), None)
        if shared is not None:
            expected = f"{shared[0]} is another tensor"
            yield _negative(event, shared[0], expected, f"{names_text(shared)} are one tensor")
        elif groups:
            yield SATISFIED

    def _own(self, event: StepEvent) -> Iterator[Example]:
        known = self._variables.by_role["parameter"].values()
        owned = {variable.identity for variable in known if not is_unowned(variable.name)}
        updated = [
            (name, identity, self._optimizers[owner])
            for owner in sorted(self._stepped & self._optimizers.keys())
            for group in self._optimizers[owner].groups
            for name, identity in zip(group.params, group.ids)
        ]
        foreign = [(name, optimizer) for name, key, optimizer in updated if key not in owned]
        for name, optimizer in foreign:
            expected = f"the optimizer updates the {name} of the model"
            found = _negative(event, name, expected, "it updates a tensor that belongs to no model")
            if is_unowned(name):  # no model ever had it
                evidence = (event, optimizer)
                yield found.replace(symptom=Symptom.HOLDS_OTHERS, evidence=evidence)
            else:
                yield found.replace(symptom=Symptom.NOT_IN_OPTIMIZER)
        if updated and not foreign:
            yield SATISFIED


def _negative(event: StepEvent, name: str, expected: str, observed: str) -> Example:
    subject = Subject(variable=name)
    return counterexample(event, subject, expected, observed, Symptom.SHARING_LOST)
