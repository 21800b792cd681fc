"""The relation *periodic*: every variable of a kind changes every k training steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincheck.facts.step_changes import StepChanges
from traincheck.facts.steps import is_judged, is_skipped
from traincheck.facts.variables import Variable, Variables, select
from traincheck.relations.base import ProposerBase, RelationBase
from traincheck.relations.periodic import auxiliary_models as _serving
from traincheck.relations.periodic.periods import MAX_PERIOD, PeriodicProposer, word
from traincheck.relations.phrasing import selector_text
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.events import Event, MarkEvent, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom

_LOOKS = {"parameter": "step", "buffer": "forward", "optimizer_state": "step"}


class Periodic(RelationBase):
    """Every variable of a kind changes every k training steps.

    What it says:
        Between two changes of a variable lie at most k training steps. A kind is a role
        (parameter, buffer, optimizer state), perhaps narrowed to a model, or to a leaf and the
        class of its module. Of a model that serves the training of another, and that no optimizer
        holds, it says the same with three times the longest stretch that was seen; and that it is
        called without grad in training steps, where it was so in nearly all of them.

    Example:
        ``Every parameter of Target changes at least once every 4 training steps.`` It breaks when
        a target network is no longer brought up to date, in the step in which it was due.

    Evidence:
        One example for each change, and for each step in which one was due and did not come. A
        variable is first due when it has changed once. A change that comes early is none the worse.
        Steps that were not recorded, unfinished steps, skipped updates and looks that cannot tell
        begin the count afresh. Context: requires_grad, in_optimizer, ndim, leaf, module_class,
        model. A model that serves another is looked at when it is called without grad, in its first
        steps and then in each tenth: one example for each look at which its weights are others.

    Chance:
        A coin for each example.

    Not said:
        What changes in every step: *contains* speaks of that. Periods that vary.
    """

    name = "periodic"

    def proposer(self) -> EitherProposer:
        return EitherProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> PeriodicDecider:
        return PeriodicDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        role = claim.params["role"]
        if role == _serving.ROLE:
            return _serving.NEEDS
        look = f"{role}@{_LOOKS[role]}"
        looks = sampled(look) if claim.params["period"] == 1 else frozenset({look})
        return Needs(states=looks | {"parameter@new"}, kinds=frozenset({"step", "optimizer"}))

    def text(self, claim: Hypothesis) -> str:
        if claim.params["role"] == _serving.ROLE:
            return _serving.text(claim.params)
        period = claim.params["period"]
        often = "training step" if period == 1 else f"{period} training steps"
        return f"Every {selector_text(claim.params)} changes at least once every {often}"

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """A shorter period of more variables implies a longer one of fewer."""
        mine, its = claim.params, other.params
        return (
            other.relation == self.name
            and mine["role"] == its["role"]
            and mine.get("asked") == its.get("asked")
            and mine.get("period", 0) <= its.get("period", 0)
            and all(
                mine.get(key) in (None, its.get(key)) for key in ("leaf", "model", "module_class")
            )
        )

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run in which nothing changed once has nothing that is due."""
        say = _serving.word if claim.params["role"] == _serving.ROLE else word
        return {"api": say(claim.params)}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        found = super().info(claim, check_id, text)
        if claim.params["role"] != _serving.ROLE:
            return found
        return replace(found, **_serving.words_of(claim.params))

    def min_programs(self, claim: Hypothesis) -> int | None:
        """How often something changes is for each program to say."""
        return None


def _is_known(params: Mapping[str, Any]) -> bool:
    """Whether some version wrote these parameters of variables."""
    return params["role"] in _LOOKS and 1 <= params["period"] <= MAX_PERIOD


class EitherProposer(ProposerBase):
    """Proposes for variables, and for models that serve others."""

    def __init__(self) -> None:
        self._variables, self._models = PeriodicProposer(), _serving.ServingProposer()

    def observe(self, event: Event) -> None:
        self._variables.observe(event)
        self._models.observe(event)

    def hypotheses(self) -> Iterator[Hypothesis]:
        yield from self._variables.hypotheses()
        yield from self._models.hypotheses()

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        return self._variables.conditional_hypotheses()

    def observed_terms(self) -> Iterator[str]:
        """Of what anything changed."""
        yield from self._variables.observed_terms()
        yield from self._models.observed_terms()


class PeriodicDecider:
    """Decides for each variable, when a step ends, whether a change came or was due."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims: list[tuple[int, Mapping[str, Any]]] = []
        serving: list[tuple[int, Mapping[str, Any]]] = []
        for index, claim in enumerate(claims):
            params = claim.params
            is_serving = params["role"] == _serving.ROLE
            if not (_serving.is_known(params) if is_serving else _is_known(params)):
                raise ValueError(f"nothing is known of {dict(params)}")
            (serving if is_serving else self._claims).append((index, params))
        self._serving = _serving.ServingDecider(serving)
        self._variables = Variables()
        self._book = StepChanges()
        self._steps = 0
        self._last: dict[tuple[int, str], int] = {}  # claim and variable -> step of the last change
        self._held: dict[int, Example] = {}

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        if isinstance(event, StateEvent):
            self._variables.observe(event)
            self._book.observe(event)
        elif isinstance(event, OptimizerEvent):
            self._variables.hold(event)
        elif isinstance(event, StepEvent):
            examples: Sequence[tuple[int, Example]] = ()
            if not event.recorded:
                self._last.clear()
            else:
                self._steps += is_judged(event)  # a change counts in whatever step it comes
                examples = [
                    found
                    for index, params in self._claims
                    for found in self._decide(index, params, event)
                ]
            self._book.turn(event)
            return [*examples, *self._serving.step(event)]
        elif isinstance(event, MarkEvent):
            return list(self._serving.mark(event))
        return ()

    def finish(self) -> Sequence[tuple[int, Example]]:
        """Nothing: what is due later is not missing yet."""
        return ()

    def _decide(
        self, index: int, params: Mapping[str, Any], event: StepEvent
    ) -> Iterator[tuple[int, Example]]:
        role, period, step = params["role"], params["period"], self._steps
        changed, unknown = self._book.changed[role], self._book.unknown[role]
        skipped = role != "buffer" and is_skipped(event)
        for variable in select(self._variables, params):
            key = (index, variable.name)
            last = self._last.get(key)
            if variable.name in changed:
                self._last[key] = step
                if last is not None:
                    yield index, self._positive(variable)
            elif skipped or variable.name in unknown:
                self._last.pop(key, None)
            elif last is not None and step - last >= period and is_judged(event):
                self._last[key] = step
                if not self._is_excused(variable, event):
                    yield index, self._negative(variable, period, event)

    def _is_excused(self, variable: Variable, event: StepEvent) -> bool:
        """A gradient or learning rate of zero explains why nothing changed."""
        if variable.role == "buffer":
            return False
        parameter = self._variables.parameter_of(variable)
        book, rates = self._book, (self._book.rates, event.lr)
        if variable.base in book.zero:
            return True
        return self._variables.rate_is_zero(parameter, rates, book.highest)

    def _positive(self, variable: Variable) -> Example:
        context = self._variables.context(variable)
        known = self._held.get(id(context))  # contexts are shared and kept
        if known is None:
            known = self._held[id(context)] = Example(holds=True, context=context)
        return known

    def _negative(self, variable: Variable, period: int, event: StepEvent) -> Example:
        requires_grad = self._variables.parameter_of(variable).requires_grad
        symptom = Symptom.NOT_UPDATED if variable.role == "parameter" else Symptom.STATE_UNCHANGED
        if variable.role != "buffer" and not requires_grad:
            symptom = Symptom.FROZEN
        often = "every step" if period == 1 else f"every {period} steps"
        return Example(
            holds=False,
            context=self._variables.context(variable),
            step=event.step,
            rank=event.rank,
            subject=Subject(variable=variable.name),
            expected=f"{variable.name} changes {often}",
            observed="due in this step, and unchanged",
            evidence=(event,),
            symptom=symptom,
        )
