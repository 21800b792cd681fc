"""The relation *sharing*: names that stand for one tensor, and names that never do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from traincheck.readings.programs import ProgramName
from traincheck.readings.provider import RunStates
from traincheck.readings.steps import is_judged
from traincheck.readings.variables import Variable, Variables
from traincheck.relations.base import (
    SATISFIED,
    DeciderBase,
    OfProgram,
    ProposerBase,
    RelationBase,
    asked,
    counterexample,
)
from traincheck.relations.iterations import Examples
from traincheck.relations.phrasing import in_program, names_text
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.torch_api import Families
from traincheck.schema.words import is_unowned

APART, OWN = "apart", "own"
_MOST_GROUPS = 24  # of names that share, in one program


class SharingProposer(ProposerBase):
    """Proposes what is true when the first training step ends."""

    observes = asked("step")
    uses = (ProgramName, Variables)

    def __init__(self) -> None:
        self._claims: list[dict[str, Any]] = []
        self._has_gap = False  # steps were not recorded, in which variables may have come

    def bind(self, run_states: RunStates) -> None:
        super().bind(run_states)
        self._variables = run_states.of(Variables)

    def observe(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            self._has_gap |= event.is_gap
            if not (self._claims or self._has_gap) and is_judged(event):
                self._claims = list(self._read())

    def _read(self) -> Iterator[dict[str, Any]]:
        groups = groups_of(self._variables.by_role["parameter"].values())
        shared = [names for names in groups if len(names) > 1]
        tied = {name.partition(".")[0] for names in shared for name in names}
        yield {"is": OWN}
        for model in sorted(self._variables.held_models() - tied):
            if "#" not in model:  # not a second model of its class
                yield {"is": APART, "model": model}
        for names in shared if len(shared) <= _MOST_GROUPS else ():
            yield {"names": names}

    def hypotheses(self) -> Iterator[Hypothesis]:
        program = self._program.name
        for claim in self._claims if program is not None else ():
            yield Hypothesis(relation="sharing", params={"program": program, **claim})


def groups_of(variables: Iterable[Variable]) -> list[list[str]]:
    """Names by the tensor that they stand for."""
    found: dict[int, list[str]] = defaultdict(list)
    for variable in variables:
        found[variable.identity].append(variable.name)
    return sorted(sorted(names) for names in found.values())


class SharingDecider(OfProgram, DeciderBase):
    """Decides when a training step ends.

    At the end of a run nothing: an unfinished step proves nothing.
    """

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [claim.params for claim in claims]
        for params in self._claims:
            is_apart = params.get("is") == APART and "model" in params
            if not ("names" in params or params.get("is") == OWN or is_apart):
                raise ValueError(f"nothing is known of {dict(params)}")
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


_TIED: Mapping[str, str] = {
    "severity": "warning",
    "headline": "{variables} {is|are} one tensor with another parameter",
    "likely_cause": "Weights are tied that every reference run keeps apart, or one layer is used "
    "in several places: {observed}.",
    "fix": "Create a layer for each place ([layer] * 3 is one layer), unless weights should be "
    "tied.",
}


class Sharing(RelationBase):
    """Names that stand for one tensor, and names that never do.

    Claims:
        - These names stand for one parameter (tied weights).
        - No two names of a model stand for one parameter.
        - Every parameter that an optimizer updates belongs to a model.

    Example:
        ``In train.py, Lm.embed.weight and Lm.head.weight are one tensor.`` It breaks when loading
        or converting replaces one of them, in the first step that ends with two tensors.

    Evidence:
        One example for each training step. Tensors are compared as objects, never by content or
        address, as another tensor may take an address. A name that no longer exists proves nothing.

    Chance:
        A coin for each step.

    Not claimed:
        - That buffers, gradients or views share memory.
        - Anything of another program, or of a second model of a class.
    """

    name = "sharing"

    def proposer(self) -> SharingProposer:
        return SharingProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> SharingDecider:
        return SharingDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        is_own = claim.params.get("is") == OWN
        return Needs(
            states=frozenset({"parameter@new"}),
            calls=frozenset({Families.OPTIMIZER_STEP} if is_own else ()),
            kinds=frozenset({"mark", "optimizer", "step"}),
        )

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        if "names" in params:
            text = f"{names_text(params['names'])} are one tensor"
        elif params["is"] == APART:
            text = f"No two parameters of {params['model']} are one tensor"
        else:
            text = "Every parameter that an optimizer updates belongs to a model"
        return in_program(params, text)

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        """Weights may well be tied that were not."""
        return _TIED if claim.params.get("is") == APART else {}
