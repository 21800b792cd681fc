"""The relation *sharing*: names that stand for one tensor, and names that never do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincheck.facts.programs import ProgramName
from traincheck.facts.steps import is_judged
from traincheck.facts.variables import Variable, Variables
from traincheck.relations.base import ProposerBase, RelationBase
from traincheck.relations.example_cache import Examples
from traincheck.relations.members import is_of_model
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined, listed

_MOST_GROUPS = 24  # of names that share, in one program
_SHOWN = 4  # names in a sentence
_HOLDS = Example(holds=True, context={})
APART, OWN = "apart", "own"
_TIED = {
    "severity": "warning",
    "headline": "{variables} {is|are} one tensor with another parameter",
    "likely_cause": "Weights are tied that every reference run keeps apart, or one layer stands in "
    "several places: {observed}.",
    "fix": "Make a layer for each place ([layer] * 3 is one layer), unless they are to be tied.",
}


class Sharing(RelationBase):
    """Names that stand for one tensor, and names that never do.

    What it says:
        These names stand for one parameter (tied weights). No two names of a model stand for one.
        Every parameter that an optimizer updates is one that a model has.

    Example:
        ``In train.py, Lm.embed.weight and Lm.head.weight are one tensor.`` It breaks when loading
        or converting puts two in its place, in the first step that ends like that.

    Evidence:
        One example for each training step, by the identity of objects, never by content or by
        address, which another tensor may take. A name that is gone proves nothing.

    Chance:
        A coin for each step.

    Not said:
        That buffers, gradients or views share memory. Anything of another program, or of a second
        model of a class.
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

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """Weights may well be tied that were not."""
        found = super().info(claim, check_id, text)
        return replace(found, **_TIED) if claim.params.get("is") == APART else found

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        if params.get("is") == OWN:
            said = "Every parameter that an optimizer updates is one that a model has"
        elif params.get("is") == APART:
            said = f"No two parameters of {params['model']} are one tensor"
        else:
            said = f"{_joined(params['names'])} are one tensor"
        return in_program(params, said)


class SharingProposer(ProposerBase):
    """Proposes what is so when the first training step ends."""

    def __init__(self) -> None:
        self._program = ProgramName()
        self._variables = Variables()
        self._groups: set[tuple[str, ...]] = set()
        self._apart: set[str] = set()
        self._is_judged = False
        self._is_blind = False  # variables may have come that nobody saw

    def observe(self, event: Event) -> None:
        if isinstance(event, StateEvent):
            self._variables.observe(event)
        elif isinstance(event, OptimizerEvent):
            self._variables.hold(event)
        elif isinstance(event, StepEvent):
            self._is_blind |= event.is_gap
            if not (self._is_judged or self._is_blind) and is_judged(event):
                self._is_judged = True
                self._look()
        else:
            self._program.observe(event)

    def _look(self) -> None:
        found = groups(self._variables.by_role["parameter"].values())
        self._groups = {tuple(names) for names in found if len(names) > 1}
        tied = {name.partition(".")[0] for names in self._groups for name in names}
        self._apart = {m for m in self._variables.held_models() if m not in tied and "#" not in m}

    def hypotheses(self) -> Iterator[Hypothesis]:
        program = self._program.name
        if program is None or not self._is_judged:
            return
        said: list[dict[str, Any]] = [{"is": OWN}]
        said += [{"is": APART, "model": model} for model in sorted(self._apart)]
        if len(self._groups) <= _MOST_GROUPS:
            said += [{"names": list(names)} for names in sorted(self._groups)]
        for params in said:
            yield Hypothesis(relation="sharing", params={"program": program, **params})


class SharingDecider:
    """Decides when a training step ends."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [claim.params for claim in claims]
        for params in self._claims:
            known = "names" in params or params.get("is") == OWN
            if not known and not (params.get("is") == APART and "model" in params):
                raise ValueError(f"nothing is known of {dict(params)}")
        self._program = ProgramName()
        self._variables = Variables()
        self._optimizers: dict[str, OptimizerEvent] = {}
        self._stepped: set[str] = set()
        self._is_blind = False  # variables may have come that nobody saw
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
            self._is_blind |= event.is_gap
            found = tuple(self._decide(event)) if is_judged(event) and not self._is_blind else ()
            self._stepped.clear()
            if found != self._last or any(not example.holds for _, example in found):
                self._last = found
            return self._last
        else:
            self._program.observe(event)
        return ()

    def finish(self) -> Examples:
        """Nothing: an unfinished step proves nothing."""
        return ()

    def _decide(self, event: StepEvent) -> Iterator[tuple[int, Example]]:
        known = self._variables.by_role["parameter"]
        for index, params in enumerate(self._claims):
            if not self._program.fits(params):
                continue
            if "names" in params:
                yield from self._tied(index, params["names"], event)
            elif params["is"] == OWN:
                yield from self._own(index, event)
            else:
                mine = [v for v in known.values() if v.model == params["model"]]
                one = next((names for names in groups(mine) if len(names) > 1), None)
                if one is not None:
                    yield index, _negative(event, one[0], APART, f"{_joined(one)} are one tensor")
                elif mine:
                    yield index, _HOLDS

    def _tied(
        self, index: int, names: Sequence[str], event: StepEvent
    ) -> Iterator[tuple[int, Example]]:
        known = self._variables.by_role["parameter"]
        identities = [known[name].identity for name in names if name in known]
        if len(identities) < len(names):
            return
        if len(set(identities)) == 1:
            yield index, _HOLDS
        for name, identity in zip(names[1:], identities[1:]):
            if identity != identities[0]:
                what = f"{names[0]} and {name} are two tensors"
                yield index, _negative(event, name, f"shared with {names[0]}", what)

    def _own(self, index: int, event: StepEvent) -> Iterator[tuple[int, Example]]:
        known = self._variables.by_role["parameter"].values()
        identities = {v.identity for v in known if is_of_model(v.name)}
        held = [
            (name, identity, self._optimizers[owner])
            for owner in sorted(self._stepped & self._optimizers.keys())
            for group in self._optimizers[owner].groups
            for name, identity in zip(group.params, group.ids)
        ]
        strange = [(name, by) for name, identity, by in held if identity not in identities]
        for name, by in strange:
            found = _negative(event, name, OWN, "it updates a tensor that no model has")
            if not is_of_model(name):  # nor ever had
                found = found.replace(symptom=Symptom.HOLDS_OTHERS, evidence=(event, by))
            yield index, found
        if held and not strange:
            yield index, _HOLDS


def groups(variables: Iterable[Variable]) -> list[list[str]]:
    """Names by the object they stand for."""
    found: Mapping[int, list[str]] = defaultdict(list)
    for variable in variables:
        found[variable.identity].append(variable.name)
    return sorted(sorted(names) for names in found.values())


def _negative(event: StepEvent, name: str, claim: str, observed: str) -> Example:
    expected = {
        APART: f"{name} is another tensor",
        OWN: f"the optimizer updates {name} as the model has it",
    }.get(claim, f"{name} is one tensor, {claim}")
    return Example(
        holds=False,
        context={},
        step=event.step,
        rank=event.rank,
        subject=Subject(variable=name),
        expected=expected,
        observed=observed,
        evidence=(event,),
        symptom=Symptom.NOT_IN_OPTIMIZER if claim == OWN else Symptom.SHARING_LOST,
    )


def _joined(names: Sequence[str]) -> str:
    return joined(names, _SHOWN) if len(names) > _SHOWN else listed(names)
