"""Decide *membership*: which variables a model has, are trained, and an optimizer holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traincheck.readings.optimizers import ByHand
from traincheck.readings.step_changes import StepChanges
from traincheck.readings.steps import is_judged
from traincheck.readings.variables import Variable, Variables
from traincheck.relations.base import SATISFIED, OfProgram, counterexample
from traincheck.relations.iterations import Examples
from traincheck.relations.phrasing import in_program
from traincheck.relations.subtrees import expand, matcher, names_folded
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
from traincheck.schema.words import joined

TRAINABLE, FROZEN, STILL, HELD, FREE = "trainable", "frozen", "still", "held", "free"
ONCE = "once"  # updated by one optimizer only
SPARSE = "sparse"  # its gradient has only the rows that were used
DTYPE = "dtype"  # the dtype that it has
REACHED = "reached"  # by a gradient; for any program
UNMOVED = "unmoved"  # while frozen; for any program
PLACES = (TRAINABLE, FROZEN, STILL, HELD, FREE, ONCE, SPARSE, DTYPE)
ROLES = ("parameter", "buffer")
MOST_STRUCTURE = 200  # patterns of the names of one model


def is_of_model(name: str) -> bool:
    """Whether a model owns it: no known model owns ``opt0[0].3``."""
    return "[" not in name.partition(".")[0]


def is_float(dtype: str) -> bool:
    """Whether it is a floating-point type."""
    return "float" in dtype


def structure(variables: Variables, model: str, role: str) -> list[str]:
    """Patterns of the variables of a model."""
    return names_folded(
        variable.name for variable in variables.by_role[role].values() if variable.model == model
    )


class Lookups:
    """Embedding weights, and whether their gradients are sparse."""

    CALLS = frozenset({f"torch.nn.functional.{n}" for n in ("embedding", "embedding_bag")})
    MODULES = frozenset(
        f"torch.nn.modules.sparse.{n}.forward" for n in ("Embedding", "EmbeddingBag")
    )

    def __init__(self) -> None:
        self._open: dict[int, bool] = {}  # span of the module that looks up
        self.sparse: dict[str, bool] = {}  # by name of the weight

    def observe(self, event: CallEvent) -> None:
        """Enter a call: a function comes before the module around it."""
        if event.api in self.CALLS:
            if event.parent is not None and event.grad_enabled:
                self._open[event.parent] = event.args.get("sparse") is True
        elif event.api in self.MODULES and event.span in self._open:
            self.sparse[f"{event.module}.weight"] = self._open.pop(event.span)


_SHOWN = 6  # names in a sentence
_TEXTS = {
    TRAINABLE: "Every parameter under {under} requires grad",
    FROZEN: "Every parameter under {under} is frozen (requires_grad is False)",
    STILL: "No training step changes a parameter under {under}",
    HELD: "Every parameter under {under} is held by an optimizer",
    FREE: "No optimizer holds a parameter under {under}",
    SPARSE: "Every embedding under {under} has sparse gradients",
    DTYPE: "Every {role} under {under} has dtype {dtype}",
    ONCE: "No training step updates a parameter under {under} with two optimizers",
}
# What breaks it: symptom, expected, observed
_BROKEN = {
    TRAINABLE: (Symptom.FROZEN, "requires_grad of {name} is True", "requires_grad is False"),
    FROZEN: (Symptom.UNFROZEN, "requires_grad of {name} is False", "requires_grad is True"),
    STILL: (Symptom.SILENT_WRITE, "no step changes {name}", "this step changes it"),
    HELD: (Symptom.NOT_IN_OPTIMIZER, "an optimizer holds {name}", "held by no optimizer"),
    FREE: (Symptom.UNFROZEN, "no optimizer holds {name}", "held by an optimizer"),
    ONCE: (
        Symptom.APPLIED_TWICE,
        "one optimizer updates {name}",
        "several optimizers update it",
    ),
    SPARSE: (
        Symptom.WRONG_VALUE,
        "the gradient of {name} is sparse, so that unused rows do not change",
        "a dense gradient: momentum and weight decay change unused rows",
    ),
    UNMOVED: (
        Symptom.SILENT_WRITE,
        "no optimizer changes {name}, as requires_grad is False",
        "changed by an optimizer",
    ),
    DTYPE: (Symptom.PRECISION, "dtype {dtype} for {name}", ""),
    REACHED: (
        Symptom.NOT_IN_OPTIMIZER,
        "an optimizer holds {name}, which gets a gradient",
        "held by no optimizer",
    ),
}


def text_of(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    what = params.get("is")
    if what == REACHED:
        return "Every parameter that gets a gradient is held by an optimizer"
    if what == UNMOVED:
        return "No optimizer changes a parameter that is frozen (requires_grad is False)"
    if what is not None:
        return in_program(params, _TEXTS[what].format(**params))
    start = len(params["model"]) + 1
    names = [pattern[start:] for pattern in params["has"]]
    text = f"The {params['role']}s of {params['model']} are {joined(names, _SHOWN)}"
    return in_program(params, text)


def negative(params: Mapping[str, Any], name: str, how: str, event: StepEvent) -> Example:
    """The counterexample of a variable.

    Args:
        params: the claim.
        name: the variable.
        how: what it is instead, where the claim leaves that open.
        event: the end of the step in which it broke the claim.
    """
    if "has" in params:
        symptom, module = Symptom.STRUCTURE, params["model"]
        expected = f"{module} has the {params['role']}s of every reference run"
        observed = f"{name} {how}"
    else:
        symptom, expected, observed = _BROKEN[params["is"]]
        expected, module = expected.format(name=name, dtype=params.get("dtype")), None
        observed = observed or how
    return counterexample(event, Subject(variable=name, module=module), expected, observed, symptom)


@dataclass(slots=True)
class TrackedClaim:
    """A claim and the variables that it covers now.

    Attributes:
        variables: the variables of the place.
        names: their names.
        broken: names of those that break the claim, and how.
        applies: whether the claim can be decided.
    """

    index: int
    params: Mapping[str, Any]
    variables: tuple[Variable, ...] = ()
    names: frozenset[str] = frozenset()
    broken: tuple[tuple[str, str], ...] = ()
    applies: bool = False

    def refresh(self, variables: Variables) -> None:
        """Find out what does not depend on the step."""
        if "has" in self.params:
            self._compare_structure(variables)
        elif "under" in self.params:
            matches = matcher(self.params["under"]).match
            found = variables.by_role[self.params.get("role", "parameter")].values()
            self.variables = tuple(v for v in found if matches(v.name))
            self.names = frozenset(v.name for v in self.variables)
            self.applies = bool(self.names)
            self._compare_flags(variables)

    def _compare_flags(self, variables: Variables) -> None:
        what = self.params["is"]
        if what in (TRAINABLE, FROZEN):
            wanted = what == TRAINABLE
            self.broken = tuple((v.name, "") for v in self.variables if v.requires_grad != wanted)
        elif what == DTYPE:
            dtype = self.params["dtype"]
            known = [v for v in self.variables if is_float(v.dtype)]
            self.applies = bool(known)
            self.broken = tuple((v.name, f"dtype {v.dtype}") for v in known if v.dtype != dtype)
        elif what in (HELD, FREE):
            wanted = what == HELD
            self.broken = tuple(
                (v.name, "")
                for v in self.variables
                # A frozen parameter is not trained, whoever holds it: TRAINABLE reports that.
                if variables.is_held(v) != wanted and v.requires_grad
            )

    def _compare_structure(self, variables: Variables) -> None:
        params = self.params
        found = structure(variables, params["model"], params["role"])
        known = variables.by_role["parameter"], variables.by_role["buffer"]
        self.applies = any(v.model == params["model"] for role in known for v in role.values())
        self.broken = ()
        if self.applies and found != list(params["has"]):
            have = {name for pattern in found for name in expand(pattern)}
            wanted = {name for pattern in params["has"] for name in expand(pattern)}
            missing = [(name, "is missing") for name in sorted(wanted - have)]
            self.broken = tuple(missing + [(n, "is new") for n in sorted(have - wanted)])


def refuse_unknown(params: Mapping[str, Any]) -> None:
    """Raise ValueError for parameters that no version wrote."""
    if params.get("is") == DTYPE:
        known = params.get("role") in ROLES and "under" in params and "dtype" in params
    elif "is" in params:
        known = params["is"] in (REACHED, UNMOVED) or (params["is"] in PLACES and "under" in params)
    else:
        known = params.get("role") in ROLES and "model" in params and "has" in params
    if not known:
        raise ValueError(f"nothing is known of {dict(params)}")


_MOST_COUNTED = 8  # variables of one step that count as examples
_SEEN = frozenset(
    {DTYPE, SPARSE, STILL, UNMOVED}
)  # changes that are recorded break these, not missing events
_OF_TRAINING = frozenset({HELD, TRAINABLE})
# Steps: its own, and that of the next scan, if the load came between update and end of a step.
_LOADED = 2


class MembershipDecider(OfProgram):
    """Decides when a training step ends. Flags are read again when they change."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [TrackedClaim(index, claim.params) for index, claim in enumerate(claims)]
        for claim in self._claims:
            refuse_unknown(claim.params)
        self._variables = Variables()
        self._changes = StepChanges()
        self._version = -1
        self._has_gap = False  # steps were not recorded, in which variables may have come
        self._updates: dict[int, CallEvent] = {}  # of this step, by span
        self._moved: set[str] = set()  # parameters that changed while they were frozen
        self._loaded: dict[str, int] = {}  # module -> steps in which a scan may find it
        self._reaching: set[str] = set()  # models that gradients have reached
        self._flagged: set[str] = set()  # whose flags changed in this step
        self._frozen_in: dict[
            str, StepEvent
        ] = {}  # parameter -> the step before, if its flags changed in that
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
            self._changes.observe(event)
        elif isinstance(event, OptimizerEvent):
            self._variables.hold(event)
        elif isinstance(event, CheckpointEvent):
            if event.op == "load_state_dict" and event.target:
                self._loaded[event.target] = _LOADED
        elif isinstance(event, StepEvent):
            # Read the changes of a step that ends
            self._has_gap |= event.is_gap
            self._excuse_loaded()
            self._reaching |= {name.partition(".")[0] for name in self._changes.reached}
            if self._by_hand.is_open:
                self._by_hand.note(self._changes.changed["parameter"])
            examples = self._decide(event) if is_judged(event) else ()
            # Begin the next step
            self._changes.turn(event)
            self._updates.clear()
            self._moved.clear()
            self._frozen_in = dict.fromkeys(self._flagged, event)
            self._flagged.clear()
            self._lookups.sparse.clear()
            return examples
        elif isinstance(event, CallEvent):
            if event.family == Families.OPTIMIZER_STEP:
                self._updates[event.span] = event
            else:
                self._lookups.observe(event)
        return ()

    def finish(self) -> Examples:
        """Claims about parameters that no later step showed to be updated by hand."""
        return self._by_hand.finish()

    def _excuse_loaded(self) -> None:
        """Excuse what a checkpoint loaded: the step whose scan finds it did not change it."""
        for target, left in [*self._loaded.items()]:
            self._loaded[target] = left - 1
            if not left:
                del self._loaded[target]
                continue
            for names in (self._moved, self._changes.changed["parameter"]):
                names -= {name for name in names if name.startswith(f"{target}.")}

    def _decide(self, event: StepEvent) -> Examples:
        if self._version != self._variables.version:
            self._version = self._variables.version
            for claim in self._claims:
                if self._program.fits(claim.params):
                    claim.refresh(self._variables)
        examples: list[tuple[int, Example]] = []
        for claim in self._claims:
            if not self._has_gap or claim.params.get("is") in _SEEN:
                examples += self._each(claim, event)
        if self._of_reached:
            examples = self._certain(examples)
        if len(examples) == len(self._last) and all(
            a[1] is b[1] is SATISFIED and a[0] == b[0] for a, b in zip(examples, self._last)
        ):
            return self._last
        self._last = tuple(examples)
        return self._last

    def _each(self, claim: TrackedClaim, event: StepEvent) -> Iterator[tuple[int, Example]]:
        what = claim.params.get("is")
        broken = claim.broken
        if what in _OF_TRAINING and broken:
            broken = self._of_training(claim)
        elif what == STILL:
            broken = tuple(
                (n, "") for n in sorted(claim.names & self._changes.changed["parameter"])
            )
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
            yield from [(claim.index, SATISFIED)] * min(len(frozen) - len(broken), _MOST_COUNTED)
            claim.applies = False
        elif what == REACHED:
            reached = self._reached()
            claim.applies = bool(reached)
            broken = tuple((v.name, "") for v in reached if not self._variables.is_held(v))
        for name, how in broken:
            since = self._frozen_in.get(name, event) if what == TRAINABLE else event
            yield claim.index, negative(claim.params, name, how, since)
        if claim.applies and not broken:
            yield claim.index, SATISFIED

    def _of_training(self, claim: TrackedClaim) -> tuple[tuple[str, str], ...]:
        """Variables that break the claim, without those of a second instance, such as a best model.

        A parameter that was frozen in this step counts in the next one, unless that trains it
        again, like a critic whose generator trains now.
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
        """Parameters that got a gradient and that an optimizer should hold.

        If no held parameter gets one, another model is trained. If no model is held, something else
        is optimized, such as an image.
        """
        if not self._updates or not self._variables.optimizers.is_of_models:
            return []
        known = self._variables.by_role["parameter"]
        reached = self._changes.reached - self._changes.zero
        found = [known[name] for name in sorted(reached) if name in known]
        models = self._variables.held_models()
        own = [variable for variable in found if variable.model in models]
        return own or [variable for variable in found if variable.requires_grad]

    def _certain(self, examples: Sequence[tuple[int, Example]]) -> list[tuple[int, Example]]:
        """Hold examples of parameters that may be updated by hand, until later steps decide."""
        doubtful = [
            (example.subject.variable or "", (index, example))
            for index, example in examples
            if index in self._of_reached and not example.holds
        ]
        if not doubtful and not self._by_hand.is_open:
            return list(examples)
        kept = [one for one in examples if one[1].holds or one[0] not in self._of_reached]
        return [*kept, *self._by_hand.settle(doubtful)]
