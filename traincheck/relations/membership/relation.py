"""The relation *membership*: which variables a model has, are trained, and an optimizer holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from traincheck.readings.programs import ProgramName
from traincheck.readings.provider import RunStates
from traincheck.readings.step_changes import StepChanges
from traincheck.readings.steps import is_judged
from traincheck.readings.variables import Variable, Variables
from traincheck.relations.base import ProposerBase, RelationBase, asked
from traincheck.relations.membership.decider import (
    DTYPE,
    FREE,
    FROZEN,
    HELD,
    MOST_STRUCTURE,
    ONCE,
    REACHED,
    ROLES,
    SPARSE,
    STILL,
    TRAINABLE,
    UNMOVED,
    Lookups,
    MembershipDecider,
    is_float,
    is_of_model,
    structure,
    text_of,
)
from traincheck.relations.subtrees import fold
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.torch_api import Families


class MembershipProposer(ProposerBase):
    """Reads the variables when each training step ends, and proposes what never changed."""

    observes = asked("step", "buffer@*", "gradient@*", "parameter@*") | Needs(
        calls=Lookups.CALLS | Lookups.MODULES
    )
    uses = (ProgramName, Variables)

    def __init__(self) -> None:
        self._changes = StepChanges()
        self._version = -1
        self._has_gap = False  # steps were not recorded, in which variables may have come
        self._lookups = Lookups()
        self._dense: set[str] = set()
        self._grads: dict[str, bool] = {}
        self._held: dict[str, bool] = {}
        self._moved: set[str] = set()
        self._structures: dict[tuple[str, str], list[str] | None] = {}
        # Models whose trained or held variables change later
        self._varying: dict[str, set[str]] = {"grads": set(), "held": set(), "dtypes": set()}
        self._dtypes: dict[str, dict[str, str]] = {role: {} for role in ROLES}

    def bind(self, run_states: RunStates) -> None:
        super().bind(run_states)
        self._variables = run_states.of(Variables)

    def observe(self, event: Event) -> None:
        if isinstance(event, StateEvent):
            self._changes.observe(event)
            if event.role in ROLES and event.summary is not None:
                # Note the dtype of a variable: a model that is cast later has two
                known = self._dtypes[event.role]
                if (
                    is_float(event.summary.dtype)
                    and known.setdefault(event.name, event.summary.dtype) != event.summary.dtype
                ):
                    self._varying["dtypes"].add(event.name.partition(".")[0])
        elif isinstance(event, CallEvent):
            self._lookups.observe(event)
            if event.api in Lookups.MODULES:
                self._dense |= {name for name, is_so in self._lookups.sparse.items() if not is_so}
        elif isinstance(event, StepEvent):
            self._has_gap |= event.is_gap
            if is_judged(event) and not self._has_gap:
                self._scan()
            self._changes.turn(event)

    def _scan(self) -> None:
        self._moved |= self._changes.changed["parameter"]
        if self._version == self._variables.version:
            return
        self._version = self._variables.version
        for variable in self._variables.by_role["parameter"].values():
            now = self._variables.is_held(variable)
            self._note("grads", self._grads, variable, variable.requires_grad)
            self._note("held", self._held, variable, now)
        for role in ROLES:
            for model in {v.model for v in self._variables.by_role[role].values()}:
                found = structure(self._variables, model, role)
                known = self._structures.setdefault((model, role), found)
                if known != found or len(found) > MOST_STRUCTURE:
                    self._structures[model, role] = None

    def _note(self, what: str, known: dict[str, bool], variable: Variable, now: bool) -> None:
        if known.setdefault(variable.name, now) != now:
            self._varying[what].add(variable.model)

    def hypotheses(self) -> Iterator[Hypothesis]:
        yield _claim({"is": REACHED})
        yield _claim({"is": UNMOVED})
        if self._program.name is None:
            return
        base = {"program": self._program.name}
        for what, pattern in self._places():
            yield _claim({**base, "is": what, "under": pattern})
        for role in ROLES:
            for pattern, dtype in self._kept_dtypes(role):
                params = {"is": DTYPE, "under": pattern, "role": role, "dtype": dtype}
                yield _claim({**base, **params})
        for (model, role), found in sorted(self._structures.items()):
            if found and is_of_model(model) and "#" not in model:
                yield _claim({**base, "model": model, "role": role, "has": found})

    def _places(self) -> Iterator[tuple[str, str]]:
        """Properties and the places that have them, of models that are trained."""
        trained = {name.partition(".")[0] for name, held in self._held.items() if held}
        names = [n for n in self._held if n.partition(".")[0] in trained and is_of_model(n)]
        looked_up = self._lookups.sparse
        yield from _folded({n: None if n in self._dense else SPARSE for n in looked_up})
        for model in sorted(trained):
            yield ONCE, model
            mine = [name for name in names if name.partition(".")[0] == model]
            if model not in self._varying["grads"]:
                yield from _folded(
                    {name: TRAINABLE if self._grads[name] else FROZEN for name in mine}
                )
                yield from _folded({name: STILL if self._is_still(name) else None for name in mine})
            if model not in self._varying["held"]:
                yield from _folded({name: HELD if self._held[name] else FREE for name in mine})

    def _kept_dtypes(self, role: str) -> Iterator[tuple[str, str]]:
        """Places of models that are trained, and their dtype."""
        trained = {name.partition(".")[0] for name, held in self._held.items() if held}
        for model in sorted(trained - self._varying["dtypes"]):
            mine = {n: d for n, d in self._dtypes[role].items() if n.partition(".")[0] == model}
            for pattern, dtype in fold(mine) if is_of_model(model) else ():
                yield pattern, str(dtype)

    def _is_still(self, name: str) -> bool:
        """Whether nothing has changed it, and there is a reason for it."""
        return name not in self._moved and not (self._grads[name] and self._held[name])


def _folded(labels: Mapping[str, Hashable]) -> Iterator[tuple[str, str]]:
    if labels and Counter(labels.values())[None] != len(labels):
        for pattern, label in fold({n: str(label) for n, label in labels.items()}):
            if label != "None":
                yield str(label), pattern


def _claim(params: dict[str, Any]) -> Hypothesis:
    return Hypothesis(relation="membership", params=params)


class Membership(RelationBase):
    """Which variables a model has, which are trained, and which an optimizer holds.

    Claims:
        - Every parameter under a place of a model is trained (requires_grad), or is frozen, or is
          never changed by a training step.
        - Every parameter under a place is held by an optimizer, or by none, or is not updated by
          two.
        - The embeddings under a place have sparse gradients.
        - The parameters, or buffers, under a place have a dtype.
        - A model has parameters, or buffers, of these names.
        - In any program, an optimizer holds every parameter that gets a gradient, and no optimizer
          changes a frozen parameter.

    Example:
        ``In train.py, every parameter under Classifier.backbone.stages.[0-1] is frozen.`` It breaks
        when the function that freezes them is not called, in the first step that trains them.

    Evidence:
        One example for each place and training step, or for each frozen variable (at most eight a
        step), and one counterexample for each variable that breaks the claim. Places are as wide as
        possible, so a large model gives few. Left out are:
        - models whose flags or optimizer change during training;
        - loss networks, averages that no optimizer holds, and parameters of a model that is not
          trained;
        - the dtype of a model that is cast while it trains, and whole numbers;
        - a parameter that is frozen in one step only: the next step trains it again.

    Chance:
        A coin for each step.

    Not claimed:
        - The group or the options with which an optimizer holds a parameter.
        - Anything about other programs, except the last claim.
    """

    name = "membership"

    def proposer(self) -> MembershipProposer:
        return MembershipProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> MembershipDecider:
        return MembershipDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        kinds = frozenset({"mark", "step", "optimizer"})  # the mark names the program
        what = claim.params.get("is")
        if what in (None, DTYPE):
            return Needs(states=frozenset({f"{claim.params['role']}@new"}), kinds=kinds)
        states = (
            sampled("parameter@step") if what in (STILL, UNMOVED, REACHED) else {"parameter@new"}
        )
        if what in (REACHED, HELD, TRAINABLE):
            states |= sampled("gradient@backward")
        calls = frozenset({Families.OPTIMIZER_STEP} if what in (ONCE, REACHED, UNMOVED) else ())
        if what == SPARSE:
            calls = Lookups.CALLS | Lookups.MODULES
        if what in (STILL, UNMOVED):
            kinds |= {"checkpoint"}
        return Needs(states=frozenset(states), calls=calls, kinds=kinds)

    def text(self, claim: Hypothesis) -> str:
        return text_of(claim.params)

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        """Another dtype may be intended, and so may a frozen part."""
        return {"severity": "warning"} if claim.params.get("is") in (DTYPE, TRAINABLE) else {}
