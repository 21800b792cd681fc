"""The relation *periodic*: every variable of a kind changes every k training steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traincheck.readings.provider import RunStates
from traincheck.readings.step_changes import StepChanges
from traincheck.readings.steps import is_judged, is_skipped
from traincheck.readings.variables import Variable, Variables, select
from traincheck.relations.base import DeciderBase, ProposerBase, RelationBase, asked, counterexample
from traincheck.relations.periodic import auxiliary_models
from traincheck.relations.phrasing import selector_text
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.events import Event, MarkEvent, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom

ROLES = ("buffer", "optimizer_state", "parameter")
MAX_PERIOD = 1000
_MIN_PROPOSED = 2  # *contains* covers changes in every step
_MIN_GAPS = 3  # equal gaps of a variable, before a period is proposed
_Selector = tuple[tuple[str, str], ...]  # narrows a role


@dataclass(slots=True)
class _Track:
    """The changes of one variable. last: the training step of the last change, if it is known."""

    variable: Variable
    last: int | None = None
    gaps: tuple[int, ...] = ()  # distinct ones, at most two
    longest: int = 0
    count: int = 0


class PeriodicProposer(ProposerBase):
    """Proposes a period where all variables of a kind have the same one."""

    def __init__(self) -> None:
        self._changes = StepChanges()
        self._tracks: dict[tuple[str, str], _Track] = {}
        self._steps = 0

    uses = (Variables,)

    def bind(self, run_states: RunStates) -> None:
        self._variables = run_states.of(Variables)

    def observe(self, event: Event) -> None:
        if isinstance(event, StateEvent):
            self._changes.observe(event)
        elif isinstance(event, StepEvent):
            if not event.recorded:
                for track in self._tracks.values():
                    track.last = None
            elif is_judged(event):
                self._steps += 1
                for role in ROLES:
                    for name in self._changes.changed[role]:
                        self._enter(role, name)
            self._changes.turn(event)

    def _enter(self, role: str, name: str) -> None:
        variable = self._variables.by_role[role].get(name)
        if variable is None:
            return
        track = self._tracks.get((role, name))
        if track is None:
            track = self._tracks[role, name] = _Track(variable)
        if track.last is not None:
            gap = self._steps - track.last
            track.count += 1
            track.longest = max(track.longest, gap)
            if gap not in track.gaps and len(track.gaps) <= 1:
                track.gaps += (gap,)
        track.last = self._steps

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Of each variable, the widest kind that has one period."""
        periods: dict[tuple[str, _Selector], set[int]] = defaultdict(set)
        for track in self._tracks.values():
            for selector in _selectors(track.variable):
                # The gap between changes of a variable; 0 when it varies or is not known yet
                periods[track.variable.role, selector].add(
                    track.gaps[0] if len(track.gaps) == 1 and track.count >= _MIN_GAPS else 0
                )
        found: set[tuple[str, _Selector, int]] = set()
        for track in self._tracks.values():
            role = track.variable.role
            for selector in _selectors(track.variable):
                if len(periods[role, selector]) == 1:
                    found.add((role, selector, min(periods[role, selector])))
                    break
        for role, selector, period in sorted(found):
            if _MIN_PROPOSED <= period <= MAX_PERIOD:
                params = {"role": role, **dict(selector), "period": period}
                yield Hypothesis(relation="periodic", params=params)

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        """The longest gap, where changes are too few to propose a period."""
        longest: dict[tuple[str, _Selector], int] = {}
        known: set[tuple[str, _Selector]] = set()
        for track in self._tracks.values():
            since = 0 if track.last is None else self._steps - track.last + 1
            for selector in _selectors(track.variable):
                key = track.variable.role, selector
                longest[key] = max(longest.get(key, 1), track.longest, since)
                if track.count >= _MIN_GAPS:
                    known.add(key)
        for (role, selector), period in sorted(longest.items()):
            if (role, selector) not in known and period <= MAX_PERIOD:
                params = {"role": role, **dict(selector), "period": period}
                yield Hypothesis(relation="periodic", params=params)

    def observed_terms(self) -> Iterator[str]:
        """Terms for the variables that changed."""
        variables = [track.variable for track in self._tracks.values()]
        return (word({"role": v.role, **dict(s)}) for v in variables for s in _selectors(v))


def word(params: Mapping[str, Any]) -> str:
    """The term for a change of any of these variables."""
    narrow = (f"{key}={params[key]}" for key in ("leaf", "model", "module_class") if key in params)
    return " ".join((params["role"], *narrow, "changes"))


def _selectors(variable: Variable) -> Iterator[_Selector]:
    """From the widest to the narrowest. Buffers differ in kind, so their leaf is always named."""
    leaf = ("leaf", variable.leaf)
    yield (leaf,) if variable.role == "buffer" else ()
    yield (*((leaf,) if variable.role == "buffer" else ()), ("model", variable.model))
    yield leaf, ("module_class", variable.module_class)


_LOOKS = {"parameter": "step", "buffer": "forward", "optimizer_state": "step"}


class Periodic(RelationBase):
    """Every variable of a kind changes every k training steps.

    Claims:
        - At most k training steps lie between two changes of a variable. A kind is a role
          (parameter, buffer, optimizer state). It may be narrowed to a model, or to a leaf and the
          class of its module.
        - The weights of an auxiliary model change within three times the longest interval that was
          seen. Such a model serves the training of another, and no optimizer holds it.
        - An auxiliary model is called without grad in training steps, if it was so in nearly all of
          them.

    Example:
        ``Every parameter of Target changes at least once every 4 training steps.`` It breaks when
        a target network is no longer updated, in the step in which an update was due.

    Evidence:
        One example for each change, and for each step in which a due change is missing. A variable
        is first due when it has changed once. An early change is fine. The count starts again after
        steps that were not recorded, unfinished steps, skipped updates and scans that cannot show a
        change. Context: requires_grad, in_optimizer, ndim, leaf, module_class, model. An auxiliary
        model is scanned when it is called without grad, in its first steps and then in every 10th
        step. Each scan that finds other weights is one example.

    Chance:
        A coin for each example.

    Not claimed:
        - What changes in every step: *contains* covers that.
        - Periods that vary.
    """

    name = "periodic"

    def proposer(self) -> EitherProposer:
        return EitherProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> PeriodicDecider:
        return PeriodicDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        role = claim.params["role"]
        if role == auxiliary_models.ROLE:
            return auxiliary_models.NEEDS
        look = f"{role}@{_LOOKS[role]}"
        looks = sampled(look) if claim.params["period"] == 1 else frozenset({look})
        return Needs(states=looks | {"parameter@new"}, kinds=frozenset({"step", "optimizer"}))

    def text(self, claim: Hypothesis) -> str:
        if claim.params["role"] == auxiliary_models.ROLE:
            return auxiliary_models.text(claim.params)
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
        """Nothing is due in a run without changes."""
        say = auxiliary_models.word if claim.params["role"] == auxiliary_models.ROLE else word
        return {"api": say(claim.params)}

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        is_serving = claim.params["role"] == auxiliary_models.ROLE
        return auxiliary_models.words_of(claim.params) if is_serving else {}

    def min_programs(self, claim: Hypothesis) -> int | None:
        """Never: each program has its own periods."""
        return None


class EitherProposer(ProposerBase):
    """Proposes for variables and for auxiliary models."""

    observes = asked("mark", "step", "buffer@*", "optimizer_state@*", "parameter@*")
    uses = PeriodicProposer.uses

    def __init__(self) -> None:
        self._variables, self._models = PeriodicProposer(), auxiliary_models.AuxiliaryProposer()

    def bind(self, run_states: RunStates) -> None:
        self._variables.bind(run_states)

    def observe(self, event: Event) -> None:
        self._variables.observe(event)
        self._models.observe(event)

    def hypotheses(self) -> Iterator[Hypothesis]:
        yield from self._variables.hypotheses()
        yield from self._models.hypotheses()

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        return self._variables.conditional_hypotheses()

    def observed_terms(self) -> Iterator[str]:
        """Terms for the variables and models that changed."""
        yield from self._variables.observed_terms()
        yield from self._models.observed_terms()


class PeriodicDecider(DeciderBase):
    """Decides for each variable, when a step ends, whether a change came or was due.

    At the end of a run nothing: a change that is due later is not missing yet.
    """

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims: list[tuple[int, Mapping[str, Any]]] = []
        serving: list[tuple[int, Mapping[str, Any]]] = []
        for index, claim in enumerate(claims):
            params = claim.params
            is_serving = params["role"] == auxiliary_models.ROLE
            # Some version wrote such parameters
            if not (
                auxiliary_models.is_known(params)
                if is_serving
                else (params["role"] in _LOOKS and 1 <= params["period"] <= MAX_PERIOD)
            ):
                raise ValueError(f"nothing is known of {dict(params)}")
            (serving if is_serving else self._claims).append((index, params))
        self._auxiliary = auxiliary_models.AuxiliaryDecider(serving)
        self._variables = Variables()
        self._changes = StepChanges()
        self._steps = 0
        self._last: dict[tuple[int, str], int] = {}  # claim and variable -> step of the last change
        self._held: dict[int, Example] = {}

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        if isinstance(event, StateEvent):
            self._variables.observe(event)
            self._changes.observe(event)
        elif isinstance(event, OptimizerEvent):
            self._variables.hold(event)
        elif isinstance(event, StepEvent):
            examples: Sequence[tuple[int, Example]] = ()
            if not event.recorded:
                self._last.clear()
            else:
                self._steps += is_judged(event)  # a change counts in any step
                examples = [
                    found
                    for index, params in self._claims
                    for found in self._decide(index, params, event)
                ]
            self._changes.turn(event)
            return [*examples, *self._auxiliary.step(event)]
        elif isinstance(event, MarkEvent):
            return list(self._auxiliary.mark(event))
        return ()

    def _decide(
        self, index: int, params: Mapping[str, Any], event: StepEvent
    ) -> Iterator[tuple[int, Example]]:
        role, period, step = params["role"], params["period"], self._steps
        changed, unknown = self._changes.changed[role], self._changes.unknown[role]
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
        book, rates = self._changes, (self._changes.rates, event.lr)
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
        return counterexample(
            event,
            Subject(variable=variable.name),
            f"{variable.name} changes {often}",
            "due in this step, and unchanged",
            symptom,
            context=self._variables.context(variable),
        )
