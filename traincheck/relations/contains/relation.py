"""The relation *contains*: during A, B happens. Claims about calls and about state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.step_changes import StepChanges
from traincheck.facts.variables import Variables
from traincheck.relations.base import ProposerBase, RelationBase
from traincheck.relations.contains import calls as _inside
from traincheck.relations.contains import changes as _changes
from traincheck.relations.contains.calls import CallDecider, CallProposer
from traincheck.relations.contains.changes import ChangeDecider, ChangeProposer
from traincheck.relations.example_cache import Examples, Joined
from traincheck.relations.phrasing import STEP, in_program
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import CheckInfo
from traincheck.schema.torch_api import Families
from traincheck.schema.trace_terms import LIFECYCLE_CHANGES

_OUTER = frozenset({Families.MODULE, Families.OPTIMIZER_STEP})


class Contains(RelationBase):
    """During A, B happens.

    What it says:
        A is a call, or a training step from one boundary to the next. B is a call, perhaps with
        given flags (``is_causal=True``), or a change: *every* variable of a kind changes. A kind is
        a role (parameter, gradient, buffer, optimizer state), perhaps narrowed to a leaf
        (``running_mean``) and the class of its module.

    Example:
        ``In every training step, every parameter changes, if requires_grad is true.`` It breaks
        when a layer is frozen by accident, is not given to the optimizer, or is cut off the graph.

    Evidence:
        One example for each call of A, or for each window and variable. Steps that are unfinished,
        were not recorded, or did not train give none. A parameter that stayed as it was is no
        counterexample when its gradient or its learning rate is zero, when training has converged
        (it has moved, and its gradient has fallen below a thousandth), when a gradient scaler
        skipped the step, when it is the turn of another optimizer, or when the view cannot tell;
        nor is an expert that gets no gradient, while others like it come and go. Context of a
        variable: requires_grad, in_optimizer, has_gradient, has_step, training, ndim, sharded,
        leaf, module_class, model; of a call: training, autocast; of the mode of a model: frozen.

    Chance:
        A coin for each example.

    Not said:
        How often B happens. What else A holds. In which of several backward calls a gradient
        arrives: programs with several losses differ in that. How the library does its own work
        (``Linear.forward`` calls ``functional.linear``, an update changes ``exp_avg``); claims of
        earlier versions about it are still decided. Claims about a class defined in the
        script itself are kept to scripts of that name.
    """

    name = "contains"

    def proposer(self) -> ContainsProposer:
        return ContainsProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> ContainsDecider:
        return ContainsDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        if "role" in claim.params:
            return _changes.needs(claim.params)
        return _inside.needs(claim.params)

    def text(self, claim: Hypothesis) -> str:
        if "role" in claim.params:
            return _changes.text(claim.params)
        return in_program(claim.params, _inside.text(claim.params))

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """A claim about more variables, or about more of a call's arguments, implies the other."""
        mine, its = claim.params, other.params
        if other.relation != self.name or ("role" in mine) != ("role" in its):
            return False
        if "role" in mine:
            same = (mine["outer"], mine["change"]) == (its["outer"], its["change"])
            same = same and _changes.within(mine) <= _changes.within(its)
            return same and _covers(mine, its)
        same = (mine["outer"], mine["inner"]) == (its["outer"], its["inner"])
        same = same and _changes.within(mine) <= _changes.within(its)
        args = mine.get("args", {}).items()
        return same and its.get("args", {}).items() <= args and _fits(mine, its)

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        return claim.params if "role" in claim.params else _inside.antecedent(claim.params)

    def min_programs(self, claim: Hypothesis) -> int | None:
        if "role" in claim.params:
            return _changes.min_programs(claim.params)
        return _inside.min_programs(claim.params)

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """Landmarks and updates are errors; a call less inside a module is a warning."""
        is_error = "role" in claim.params or claim.params["outer"] == STEP
        return CheckInfo(
            check_id=check_id,
            kind="invariant",
            code=self.name,
            severity="error" if is_error else "warning",
            title=text,
        )


def _covers(mine: Mapping[str, Any], its: Mapping[str, Any]) -> bool:
    """Whether all variables of the other claim are among mine."""
    return mine["role"] == its["role"] and all(
        mine.get(key) in (None, its.get(key)) for key in ("leaf", "module_class")
    )


def _fits(mine: Mapping[str, Any], its: Mapping[str, Any]) -> bool:
    return mine.get("program") in (None, its.get("program"))


class ContainsProposer(ProposerBase):
    """Proposes both kinds of claims."""

    def __init__(self) -> None:
        self._halves = (CallProposer(), ChangeProposer())

    def observe(self, event: Event) -> None:
        for half in self._halves:
            half.observe(event)

    def hypotheses(self) -> Iterator[Hypothesis]:
        for half in self._halves:
            yield from half.hypotheses()

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        return self._halves[0].conditional_hypotheses()

    def observed_terms(self) -> Iterator[str]:
        return self._halves[0].observed_terms()


class ContainsDecider:
    """Decides both kinds of claims."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        numbered = [(index, claim.params) for index, claim in enumerate(claims)]
        self._variables = Variables()
        calls = [(i, p) for i, p in numbered if "role" not in p]
        changes = [(i, p) for i, p in numbered if "role" in p]
        book = StepChanges()
        self._calls = CallDecider(calls, self._variables, book)
        self._changes = ChangeDecider(changes, self._variables, book)
        self._last = Joined()

    def observe(self, event: Event) -> Examples:
        # By kind, most frequent first: nine events in ten are state changes or calls.
        if isinstance(event, StateEvent):
            if event.change in LIFECYCLE_CHANGES:
                self._variables.observe(event)
            self._changes.state(event)
        elif isinstance(event, CallEvent):
            if event.family in _OUTER:
                self._changes.call(event)
            return self._calls.call(event)
        elif isinstance(event, StepEvent):
            return self._last.join((self._calls.step(event), self._changes.step(event)))
        elif isinstance(event, OptimizerEvent):
            self._variables.hold(event)
        else:
            self._calls.mark(event)
        return ()

    def finish(self) -> Examples:
        """What the end of a run proves: an unfinished window proves nothing."""
        return [*self._calls.finish(), *self._changes.finish()]
