"""The relation *contains*: during A, B happens. Claims about calls and about state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.readings.provider import RunStates
from traincheck.readings.step_changes import StepChanges
from traincheck.readings.steps import is_judged
from traincheck.readings.variables import Variables
from traincheck.relations.base import OfProgram, ProposerBase, RelationBase, asked
from traincheck.relations.contains import call_claims, change_claims
from traincheck.relations.contains.call_decider import CallDecider, CallProposer, LandmarkDecider
from traincheck.relations.contains.change_claims import ChangeProposer
from traincheck.relations.contains.change_decider import ChangeDecider, ModeDecider
from traincheck.relations.contains.messages import text_of
from traincheck.relations.iterations import ExampleCache, Examples
from traincheck.relations.phrasing import STEP
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.marks import LIFECYCLE_CHANGES
from traincheck.schema.torch_api import Families

_OUTER = frozenset({Families.MODULE, Families.OPTIMIZER_STEP})


class Contains(RelationBase):
    """During A, B happens.

    Claims:
        - A is a call, or a training step from one boundary to the next.
        - B is a call, perhaps with given flags (``is_causal=True``), or a change: *every* variable
          of a kind changes.
        - A kind is a role (parameter, gradient, buffer, optimizer state). It may be narrowed to a
          leaf (``running_mean``) and the class of its module.

    Example:
        ``In every training step, every parameter changes, if requires_grad is true.`` It breaks
        when a layer is frozen by accident, is not given to the optimizer, or is cut off the graph.

    Evidence:
        One example for each call of A, or for each window and variable. Steps that are unfinished,
        were not recorded, or did not train give none. A parameter that did not change is no
        counterexample in these cases: its gradient or learning rate is zero; training has converged
        (the parameter has moved, and its gradient has fallen below a thousandth); a gradient scaler
        skipped the step; another optimizer steps now; the view cannot show the change; it belongs
        to an expert that gets no gradient, while others like it come and go. Context of a variable:
        requires_grad, in_optimizer, has_gradient, has_step, training, ndim, sharded, leaf,
        module_class, model. Context of a call: training, autocast. Context of the mode of a model:
        frozen.

    Chance:
        A coin for each example.

    Not claimed:
        - How often B happens, and what else A holds.
        - In which of several backward calls a gradient arrives: programs with several losses differ
          in that.
        - How the library does its own work (``Linear.forward`` calls ``functional.linear``, an
          update changes ``exp_avg``). Claims of earlier versions about it are still decided.
        - Anything of other scripts, for a class that is defined in a script.
    """

    name = "contains"

    def proposer(self) -> ContainsProposer:
        return ContainsProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> ContainsDecider:
        return ContainsDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        if "role" in claim.params:
            return change_claims.needs(claim.params)
        return call_claims.needs(claim.params)

    def text(self, claim: Hypothesis) -> str:
        return text_of(claim.params)

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """A claim about more variables, or about more of a call's arguments, implies the other."""
        mine, its = claim.params, other.params
        if other.relation != self.name or ("role" in mine) != ("role" in its):
            return False
        if "role" in mine:
            same = (mine["outer"], mine["change"]) == (its["outer"], its["change"])
            same = same and change_claims.within(mine) <= change_claims.within(its)
            # Whether all variables of the other claim are among mine.
            return same and (
                mine["role"] == its["role"]
                and all(mine.get(key) in (None, its.get(key)) for key in ("leaf", "module_class"))
            )
        same = (mine["outer"], mine["inner"]) == (its["outer"], its["inner"])
        same = same and change_claims.within(mine) <= change_claims.within(its)
        args = mine.get("args", {}).items()
        return (
            same
            and its.get("args", {}).items() <= args
            and mine.get("program") in (None, its.get("program"))
        )

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        return claim.params if "role" in claim.params else call_claims.antecedent(claim.params)

    def min_programs(self, claim: Hypothesis) -> int | None:
        if "role" in claim.params:
            return change_claims.min_programs(claim.params)
        return call_claims.min_programs(claim.params)

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        """Missing landmarks and updates are errors; a missing call inside a module is a warning."""
        is_error = "role" in claim.params or claim.params["outer"] == STEP
        return {"severity": "error" if is_error else "warning"}


class ContainsProposer(ProposerBase):
    """Proposes claims about calls and claims about state."""

    observes = asked("call", "optimizer", "step", "*@new")

    def __init__(self) -> None:
        self._calls, self._changes = CallProposer(), ChangeProposer()

    def bind(self, run_states: RunStates) -> None:
        self._calls.bind(run_states)

    def observe(self, event: Event) -> None:
        self._calls.observe(event)
        self._changes.observe(event)

    def hypotheses(self) -> Iterator[Hypothesis]:
        yield from self._calls.hypotheses()
        yield from self._changes.hypotheses()

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        return self._calls.conditional_hypotheses()

    def observed_terms(self) -> Iterator[str]:
        return self._calls.observed_terms()


class ContainsDecider(OfProgram):
    """Passes claims and events on to the decider of each kind of claim."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        by_kind: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
        for index, claim in enumerate(claims):
            by_kind[_kind(claim.params)].append((index, claim.params))
        self._variables, changes = Variables(), StepChanges()
        self._calls = CallDecider(by_kind["call"])
        self._modes = ModeDecider([index for index, _ in by_kind["mode"]], self._variables)
        self._landmarks = LandmarkDecider(by_kind["landmark"], self._variables, changes)
        self._changes = ChangeDecider(by_kind["change"], self._variables, changes)
        self._cache = ExampleCache()

    def bind(self, run_states: RunStates) -> None:
        self._calls.bind(run_states)

    def observe(self, event: Event) -> Examples:
        # By kind, most frequent first: nine events in ten are state changes or calls.
        if isinstance(event, StateEvent):
            if event.change in LIFECYCLE_CHANGES:
                self._variables.observe(event)
            self._changes.state(event)
        elif isinstance(event, CallEvent):
            if event.family in _OUTER:
                self._changes.call(event)
            elif event.api == Families.BACKWARD:
                self._landmarks.backward(event)
            found = self._calls.call(event)
            updated = self._modes.call(event) if self._modes.claims else None
            return found if updated is None else updated
        elif isinstance(event, StepEvent):
            landmarks = self._landmarks.step(event)
            self._calls.step(event)
            if not is_judged(event):
                self._modes.skip(recorded=event.recorded)
            return self._cache.join((landmarks, self._changes.step(event)))
        elif isinstance(event, OptimizerEvent):
            self._variables.hold(event)
        else:
            self._modes.mark(event)
        return ()

    def finish(self) -> Examples:
        """The examples that the end of a run proves. An unfinished window proves nothing."""
        return [*self._landmarks.finish(), *self._changes.finish()]


def _kind(params: Mapping[str, Any]) -> str:
    if "role" in params:
        return "change"
    if params["outer"] != STEP:
        return "call"
    return "mode" if params["inner"] == Families.MODULE else "landmark"
