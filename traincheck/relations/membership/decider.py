"""Decide *membership*: which variables a model has, are trained, and an optimizer holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traincheck.facts.manual_updates import ByHand
from traincheck.facts.programs import ProgramName
from traincheck.facts.step_changes import StepChanges
from traincheck.facts.steps import is_judged
from traincheck.facts.variables import Variable, Variables
from traincheck.relations.example_cache import Examples
from traincheck.relations.members import (
    DTYPE,
    FREE,
    FROZEN,
    HELD,
    ONCE,
    PLACES,
    REACHED,
    ROLES,
    SPARSE,
    STILL,
    TRAINABLE,
    UNMOVED,
    Lookups,
    is_float,
    structure,
)
from traincheck.relations.subtrees import expand, matcher
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    Event,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.torch_api import Families

_MOST_COUNTED = 8  # variables of one step that count as examples
_HOLDS = Example(holds=True, context={})
_SEEN = frozenset({DTYPE, SPARSE, STILL, UNMOVED})  # what breaks these is seen, not missed
_OF_TRAINING = frozenset({HELD, TRAINABLE})
# What breaks it: symptom, expected, observed
_BROKEN = {
    TRAINABLE: (Symptom.FROZEN, "requires_grad of {name} is True", "requires_grad is False"),
    FROZEN: (Symptom.UNFROZEN, "requires_grad of {name} is False", "requires_grad is True"),
    STILL: (Symptom.SILENT_WRITE, "no step changes {name}", "this step makes a change"),
    HELD: (Symptom.NOT_IN_OPTIMIZER, "an optimizer holds {name}", "held by no optimizer"),
    FREE: (Symptom.UNFROZEN, "no optimizer holds {name}", "held by an optimizer"),
    ONCE: (
        Symptom.APPLIED_TWICE,
        "one optimizer updates {name}",
        "several optimizers make an update",
    ),
    SPARSE: (
        Symptom.WRONG_VALUE,
        "the gradient of {name} is sparse, so that other rows stay as they are",
        "a dense gradient: momentum and weight decay move rows that were not looked up",
    ),
    UNMOVED: (
        Symptom.SILENT_WRITE,
        "no optimizer changes {name}, as requires_grad is False",
        "changed by an optimizer",
    ),
    DTYPE: (Symptom.PRECISION, "dtype {dtype} for {name}", ""),
    REACHED: (
        Symptom.NOT_IN_OPTIMIZER,
        "an optimizer holds {name}, as of all that gets a gradient",
        "held by no optimizer",
    ),
}


# Steps: its own, and that of the look after the next update, if it came between update and end.
_LOADED = 2


@dataclass(slots=True)
class _Claim:
    index: int
    params: Mapping[str, Any]
    variables: tuple[Variable, ...] = ()
    names: frozenset[str] = frozenset()
    broken: tuple[tuple[str, str], ...] = ()  # names that are otherwise, and how
    applies: bool = False


class MembershipDecider:
    """Decides when a training step ends; who has which flags is looked at when that changes."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [_Claim(index, claim.params) for index, claim in enumerate(claims)]
        for claim in self._claims:
            _refuse_unknown(claim.params)
        self._program = ProgramName()
        self._variables = Variables()
        self._book = StepChanges()
        self._version = -1
        self._is_blind = False  # variables and optimizers may have come that nobody saw
        self._updates: dict[int, CallEvent] = {}  # of this step, by span
        self._moved: set[str] = set()  # parameters that changed while they were frozen
        self._loaded: dict[str, int] = {}  # module -> steps in which a look may find it
        self._reaching: set[str] = set()  # models that gradients have reached
        self._flagged: set[str] = set()  # whose flags changed in this step
        self._frozen_in: dict[str, StepEvent] = {}  # the step before, where they did in it
        self._lookups = Lookups()
        self._of_reached = {c.index for c in self._claims if c.params.get("is") == REACHED}
        self._by_hand = ByHand[str, tuple[int, Example]]()  # by name
        self._last: Examples = ()

    def observe(self, event: Event) -> Examples:
        if isinstance(event, StateEvent):
            if event.change == "content" and event.role == "parameter" and not event.requires_grad:
                known = self._variables.by_role["parameter"].get(event.name)
                if known is not None and not known.requires_grad:
                    self._moved.add(event.name)
            elif event.change == "flags" and event.role == "parameter":
                self._flagged.add(event.name)
            self._variables.observe(event)
            self._book.observe(event)
        elif isinstance(event, OptimizerEvent):
            self._variables.hold(event)
        elif isinstance(event, CheckpointEvent):
            if event.op == "load_state_dict" and event.target:
                self._loaded[event.target] = _LOADED
        elif isinstance(event, StepEvent):
            self._note(event)
            examples = self._decide(event) if is_judged(event) else ()
            self._turn(event)
            return examples
        elif isinstance(event, CallEvent):
            if event.family == Families.OPTIMIZER_STEP:
                self._updates[event.span] = event
            else:
                self._lookups.observe(event)
        else:
            self._program.observe(event)
        return ()

    def _note(self, event: StepEvent) -> None:
        """Read the book of a step that ends."""
        self._is_blind |= event.is_gap
        self._excuse_loaded()
        self._reaching |= {name.partition(".")[0] for name in self._book.reached}
        if self._by_hand.is_open:
            self._by_hand.note(self._book.changed["parameter"])

    def _turn(self, event: StepEvent) -> None:
        """Begin the next step."""
        self._book.turn(event)
        self._updates.clear()
        self._moved.clear()
        self._frozen_in = dict.fromkeys(self._flagged, event)
        self._flagged.clear()
        self._lookups.sparse.clear()

    def finish(self) -> Examples:
        """Claims about parameters that no later step showed to be updated by hand."""
        return self._by_hand.finish()

    def _excuse_loaded(self) -> None:
        """What a checkpoint brought is no doing of the step in which a look finds it."""
        for target, left in [*self._loaded.items()]:
            self._loaded[target] = left - 1
            if not left:
                del self._loaded[target]
                continue
            for names in (self._moved, self._book.changed["parameter"]):
                names -= {name for name in names if name.startswith(f"{target}.")}

    def _decide(self, event: StepEvent) -> Examples:
        if self._version != self._variables.version:
            self._version = self._variables.version
            for claim in self._claims:
                if self._program.fits(claim.params):
                    self._look(claim)
        examples: list[tuple[int, Example]] = []
        for claim in self._claims:
            if not self._is_blind or claim.params.get("is") in _SEEN:
                examples += self._each(claim, event)
        if self._of_reached:
            examples = self._certain(examples)
        if len(examples) == len(self._last) and all(
            a[1] is b[1] is _HOLDS and a[0] == b[0] for a, b in zip(examples, self._last)
        ):
            return self._last
        self._last = tuple(examples)
        return self._last

    def _look(self, claim: _Claim) -> None:
        """Find out what does not depend on the step."""
        params = claim.params
        if "has" in params:
            self._look_at_structure(claim)
            return
        if "under" not in params:
            return
        matches = matcher(params["under"]).match
        found = self._variables.by_role[params.get("role", "parameter")].values()
        claim.variables = tuple(v for v in found if matches(v.name))
        claim.names = frozenset(v.name for v in claim.variables)
        claim.applies = bool(claim.names)
        wanted = {TRAINABLE: True, FROZEN: False}.get(params["is"])
        if wanted is not None:
            claim.broken = tuple(
                (v.name, "") for v in claim.variables if v.requires_grad is not wanted
            )
        elif params["is"] == DTYPE:
            known = [v for v in claim.variables if is_float(v.dtype)]
            claim.applies = bool(known)
            claim.broken = tuple(
                (v.name, f"dtype {v.dtype}") for v in known if v.dtype != params["dtype"]
            )
        elif params["is"] in (HELD, FREE):
            held = params["is"] == HELD
            claim.broken = tuple(
                (v.name, "")
                for v in claim.variables
                # What is frozen is not trained, whoever holds it; that it is, TRAINABLE tells.
                if self._variables.is_held(v) is not held and v.requires_grad
            )

    def _look_at_structure(self, claim: _Claim) -> None:
        params = claim.params
        found = structure(self._variables, params["model"], params["role"])
        known = self._variables.by_role["parameter"], self._variables.by_role["buffer"]
        claim.applies = any(v.model == params["model"] for role in known for v in role.values())
        claim.broken = ()
        if claim.applies and found != list(params["has"]):
            have = {name for pattern in found for name in expand(pattern)}
            wanted = {name for pattern in params["has"] for name in expand(pattern)}
            missing = [(name, "is missing") for name in sorted(wanted - have)]
            claim.broken = tuple(missing + [(n, "is new") for n in sorted(have - wanted)])

    def _each(self, claim: _Claim, event: StepEvent) -> Iterator[tuple[int, Example]]:
        what = claim.params.get("is")
        broken = claim.broken
        if what in _OF_TRAINING and broken:
            broken = self._of_training(claim)
        elif what == STILL:
            broken = tuple((n, "") for n in sorted(claim.names & self._book.changed["parameter"]))
        elif what == ONCE:
            claim.applies = bool(self._updates)
            broken = tuple((n, "") for n in sorted(self._held_by_several() & claim.names))
        elif what == SPARSE:
            looked_up = {n: so for n, so in self._lookups.sparse.items() if n in claim.names}
            claim.applies = bool(looked_up)
            broken = tuple((name, "") for name, so in sorted(looked_up.items()) if not so)
        elif what == UNMOVED:
            frozen = self._frozen()
            broken = tuple((n, "") for n in sorted(self._moved.intersection(frozen)))
            yield from [(claim.index, _HOLDS)] * min(len(frozen) - len(broken), _MOST_COUNTED)
            claim.applies = False
        elif what == REACHED:
            reached = self._reached()
            claim.applies = bool(reached)
            broken = tuple((v.name, "") for v in reached if not self._variables.is_held(v))
        for name, how in broken:
            since = self._frozen_in.get(name, event) if what == TRAINABLE else event
            yield claim.index, _negative(claim.params, name, how, since)
        if claim.applies and not broken:
            yield claim.index, _HOLDS

    def _of_training(self, claim: _Claim) -> tuple[tuple[str, str], ...]:
        """What is broken, but for an instance beside the one that trains: a spare, the best yet.

        What was frozen in this step is told in the next one, unless that trains it again: so are
        critics while their generators train.
        """
        fresh = self._flagged if claim.params["is"] == TRAINABLE else frozenset()
        held = self._variables.held_models()
        classes = {model.partition("#")[0] for model in held}
        models = {variable.name: variable.model for variable in claim.variables}
        return tuple(
            (name, how)
            for name, how in claim.broken
            if name not in fresh
            and (
                models[name] in held | self._reaching
                or models[name].partition("#")[0] not in classes
            )
        )

    def _held_by_several(self) -> set[str]:
        """Parameters that optimizers hold that step by themselves, not within another's step."""
        owners = {u.owner for u in self._updates.values() if u.parent not in self._updates}
        held = self._variables.held_parameters() if len(owners) > 1 else []
        return {v.name for v in held if len(self._variables.holders(v) & owners) > 1}

    def _frozen(self) -> list[str]:
        """Frozen parameters that an optimizer holds that steps."""
        if not self._updates:
            return []
        return [v.name for v in self._variables.held_parameters() if not v.requires_grad]

    def _reached(self) -> list[Variable]:
        """Parameters that got a gradient and that an optimizer is to hold.

        Where what is held gets none, the one that trains is another model. Where nothing of a model
        is held, something else is optimized: an image.
        """
        if not self._updates or not self._variables.optimizers.is_of_models:
            return []
        known = self._variables.by_role["parameter"]
        reached = self._book.reached - self._book.zero
        found = [known[name] for name in sorted(reached) if name in known]
        models = self._variables.held_models()
        own = [variable for variable in found if variable.model in models]
        return own or [variable for variable in found if variable.requires_grad]

    def _certain(self, examples: Sequence[tuple[int, Example]]) -> list[tuple[int, Example]]:
        """Without parameters that the program may update itself, until later steps decide."""
        doubtful = [
            (example.subject.variable or "", (index, example))
            for index, example in examples
            if index in self._of_reached and not example.holds
        ]
        if not doubtful and not self._by_hand.is_open:
            return list(examples)
        kept = [one for one in examples if one[1].holds or one[0] not in self._of_reached]
        return [*kept, *self._by_hand.settle(doubtful)]


def _negative(params: Mapping[str, Any], name: str, how: str, event: StepEvent) -> Example:
    if "has" in params:
        symptom, module = Symptom.STRUCTURE, params["model"]
        expected, observed = f"{module} has the {params['role']}s of every reference run", ""
        observed = f"{name} {how}"
    else:
        symptom, expected, observed = _BROKEN[params["is"]]
        expected, module = expected.format(name=name, dtype=params.get("dtype")), None
        observed = observed or how
    return Example(
        holds=False,
        context={},
        step=event.step,
        rank=event.rank,
        subject=Subject(variable=name, module=module),
        expected=expected,
        observed=observed,
        evidence=(event,),
        symptom=symptom,
    )


def _refuse_unknown(params: Mapping[str, Any]) -> None:
    if params.get("is") == DTYPE:
        known = params.get("role") in ROLES and "under" in params and "dtype" in params
    elif "is" in params:
        known = params["is"] in (REACHED, UNMOVED) or (params["is"] in PLACES and "under" in params)
    else:
        known = params.get("role") in ROLES and "model" in params and "has" in params
    if not known:
        raise ValueError(f"nothing is known of {dict(params)}")
