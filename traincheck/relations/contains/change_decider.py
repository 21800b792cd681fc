"""Decide whether variables change in a step or an update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from traincheck.facts.distributed.awaited import ROUTED, STUCK, UNGRAPHED
from traincheck.facts.manual_updates import ByHand
from traincheck.facts.step_activity import StepActivity
from traincheck.facts.step_changes import StepChanges
from traincheck.facts.steps import is_judged, is_skipped
from traincheck.facts.variables import Variable, Variables
from traincheck.relations.base import counterexample
from traincheck.relations.contains.change_claims import TEMPLATES, template_of, within
from traincheck.relations.contains.messages import change_broken
from traincheck.relations.contains.tracked_claim import TrackedClaim
from traincheck.relations.example_cache import ExampleCache, Examples, PositiveExamples
from traincheck.relations.phrasing import STEP
from traincheck.schema.claims import Context
from traincheck.schema.events import CallEvent, StateEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom


class ChangeDecider:
    """Decides when a step ends, with an example for each window and variable.

    In a healthy run every step gives the same answer. Then it is the same object each time, which
    costs a few set operations, whatever the number of variables.
    """

    def __init__(
        self,
        claims: Sequence[tuple[int, Mapping[str, Any]]],
        variables: Variables,
        changes: StepChanges,
    ) -> None:
        self._claims = [
            TrackedClaim(index, params, *template_of(params)) for index, params in claims
        ]
        for claim in self._claims:
            if (claim.outer, claim.role, claim.change) not in TEMPLATES:
                raise ValueError(f"nothing is known of {dict(claim.params)}")
        self._variables = variables
        self._changes = changes
        self._activity = StepActivity(variables, changes)
        self._by_hand = ByHand[str, tuple[int, Example]]()  # by name, of what no optimizer holds
        self._clean: Examples | None = None  # an answer in which nothing is doubtful
        self._version = -1
        self._has_gap = False  # steps were not recorded, in which a variable may have changed
        self._positives = PositiveExamples()
        self._cache = ExampleCache()

    def state(self, event: StateEvent) -> None:
        """Enter a change."""
        self._changes.observe(event)

    def call(self, event: CallEvent) -> None:
        """Enter an update or a forward."""
        self._activity.call(event)

    def finish(self) -> Examples:
        """Claims about parameters that no later step showed to be updated by hand."""
        return self._by_hand.finish()

    def step(self, event: StepEvent) -> Examples:
        """Decide what the step shows."""
        examples: Examples = ()
        if self._by_hand.is_open:
            self._by_hand.note(self._changes.changed["parameter"])
        if is_judged(event) and self._claims:
            examples = self._certain(self._cache.join(self._decide(event)))
        self._activity.end_step(event)
        self._changes.turn(event)
        self._has_gap |= event.is_gap
        if not event.recorded:
            for claim in self._claims:
                claim.lapses.clear()
                claim.rests.clear()
        return examples

    def _certain(self, examples: Examples) -> Examples:
        """Hold examples of parameters that may be updated by hand, until later steps decide."""
        if examples is self._clean:
            return examples
        doubtful = [
            (example.subject.variable or "", (index, example))
            for index, example in examples
            if not example.holds and example.symptom is Symptom.NOT_IN_OPTIMIZER
        ]
        if not doubtful and not self._by_hand.is_open:
            self._clean = examples
            return examples
        self._clean = None
        certain = self._by_hand.settle(doubtful)
        kept = [one for one in examples if one[1].symptom is not Symptom.NOT_IN_OPTIMIZER]
        return [*kept, *certain]

    def _decide(self, event: StepEvent) -> Iterator[Examples]:
        if self._version != self._variables.version:
            self._version = self._variables.version
            self._activity.refresh()
            for claim in self._claims:
                claim.select(self._variables)
        skipped = is_skipped(event)
        for claim in self._claims:
            if claim.outer != STEP:
                for update in self._activity.updates:
                    yield self._window(claim, event, update)
            elif not (skipped and claim.role == "parameter"):
                yield self._window(claim, event, None)

    def _window(self, claim: TrackedClaim, event: StepEvent, update: CallEvent | None) -> Examples:
        changes, role = self._changes, claim.role
        owner = update.owner if update is not None else None
        has_updates = bool(self._activity.updates)
        variables, names, bases = claim.population(owner, self._variables, has_updates=has_updates)
        if claim.change == "cleared":
            changed: AbstractSet[str] = changes.cleared
        elif update is None:
            changed = changes.changed[role]
        else:
            changed = self._during(update) - changes.unknown[role]
        if within(claim.params) > 1:
            changed = changed | (changes.changed["parameter"] & self._activity.trainable)
        if names <= changed and (role in ("buffer", "gradient") or bases <= changes.reached):
            modes = [self._activity.mode_of(v) for v in variables] if role == "buffer" else ()
            key = (owner, *(update.owner for update in self._activity.updates), *modes)
            known = claim.known.get(key)
            if known is None:
                contexts = [self._context(claim, variable) for variable in variables]
                known = tuple((claim.index, self._positives.of(context)) for context in contexts)
                claim.reached |= {(v.name, v.identity) for v in variables}
                claim.known[key] = known
            return known
        return tuple(self._each(claim, event, variables, changed))

    def _during(self, update: CallEvent) -> AbstractSet[str]:
        """The variables that changed in an update, and in the updates of inner optimizers."""
        found: set[str] = set()
        for other in self._activity.updates:
            if other.start_ns >= update.start_ns:
                found |= self._changes.after.get(other.span, set())
            if other is update:  # those that began later and ended before lie within it
                break
        return found

    def _each(
        self,
        claim: TrackedClaim,
        event: StepEvent,
        variables: Sequence[Variable],
        changed: AbstractSet[str],
    ) -> Iterator[tuple[int, Example]]:
        for variable in variables:
            if variable.name in changed:
                key = variable.name, variable.identity
                if claim.lapses.pop(key, None):
                    claim.fickle.add(_without_numbers(variable.name))
                claim.rests.pop(key, None)
                claim.reached.add(key)
                yield claim.index, self._positives.of(self._context(claim, variable))
            elif claim.change == "cleared":
                if self._is_added_to(variable, event):
                    yield claim.index, self._negative(claim, event, variable)
            elif not self._is_excused(claim, variable, event):
                for example in self._overdue(claim, event, variable, changed):
                    yield claim.index, example

    def _is_added_to(self, variable: Variable, event: StepEvent) -> bool:
        """Whether backward() adds to an old gradient that this step applies.

        A gradient that no step applies may be cleared later: it was computed to be read. A step
        without a backward pass is the rest of a step that was cut too early.
        """
        return (
            variable.name in self._changes.at_start
            and event.counters.get("backward", 0) > 0
            and self._activity.is_stepped(variable)
            and not self._activity.is_idle(variable)
        )

    def _overdue(
        self, claim: TrackedClaim, event: StepEvent, variable: Variable, changed: AbstractSet[str]
    ) -> Sequence[Example]:
        """The steps in which a change was missed, once it has been missed for too long."""
        patience = within(claim.params)
        key, pattern = (variable.name, variable.identity), _without_numbers(variable.name)
        if patience == 1:
            # Experts that stand in a list may go without once, in runs in which they never did
            is_trained = self._variables.parameter_of(variable).requires_grad
            if not (is_trained and key in claim.reached):
                return (self._negative(claim, event, variable),)
            if pattern not in map(_without_numbers, changed):
                return self._stuck(claim, event, variable)
            patience = ROUTED
        elif key in claim.reached:
            claim.fickle.add(pattern)  # such as an expert that is not used in each step
        if pattern in claim.fickle or self._has_gap:
            return ()
        module = variable.name.rpartition(".")[0]
        if module in self._activity.ungraphed and module not in self._activity.modes:
            patience = UNGRAPHED
        lapses = claim.lapses.setdefault(key, [])
        lapses.append(event)
        if len(lapses) < patience:
            return ()
        return (self._negative(claim, claim.lapses.pop(key)[0], variable),)

    def _stuck(
        self, claim: TrackedClaim, event: StepEvent, variable: Variable
    ) -> Sequence[Example]:
        """The steps in which a parameter rests that has moved, once it has rested for too long.

        Each has its own context: in one of them the parameter may have had no gradient.
        """
        example = self._negative(claim, event, variable)
        if claim.role != "parameter" or not self._variables.is_held(variable):
            return (example,)
        rests = claim.rests.setdefault((variable.name, variable.identity), [])
        rests.append(example)
        step = event.step or 0
        if step - self._activity.moved_at.get(variable.name, step - 1) < STUCK:
            return ()
        stuck = tuple(rests)
        rests.clear()
        return stuck

    def _is_excused(self, claim: TrackedClaim, variable: Variable, event: StepEvent) -> bool:
        """Whether there is a good reason for not having changed."""
        changes, activity, role = self._changes, self._activity, claim.role
        if variable.name in changes.unknown[role] or changes.is_new(variable, event):
            return True
        if role == "buffer":
            return activity.mode_of(variable) is None
        if claim.outer == STEP and activity.is_idle(variable):
            return True
        if role == "gradient":
            return activity.is_uncalled(variable)
        # Taken away by hand before the update, or of zeros that have a sign
        if any(changes.left.get(variable.base) == update.span for update in activity.updates):
            return True
        parameter = self._variables.parameter_of(variable)
        if role == "parameter" and (activity.is_noise(parameter) or activity.may_be_warm_up()):
            return True
        has_moved = (variable.name, variable.identity) in claim.reached
        if activity.is_converged() or (has_moved and changes.is_faded(parameter)):
            return True
        rates = (changes.rates, event.lr)
        is_rate_zero = self._variables.rate_is_zero(parameter, rates, changes.highest)
        return variable.base in changes.zero or is_rate_zero

    def _context(self, claim: TrackedClaim, variable: Variable) -> Context:
        changes, role = self._changes, claim.role
        if role == "gradient":  # the claim itself asks whether there is one
            return self._variables.context(variable)
        if role == "buffer":
            return self._variables.context(variable, training=self._activity.mode_of(variable))
        reached = changes.has_gradient(variable.base) or (
            # An update proves it, where optimizers step as soon as there is one, within backward.
            variable.base in changes.changed["parameter"] and self._variables.is_held(variable)
        )
        if claim.outer == STEP:  # gradients may have been computed to look where they point
            stepped = self._activity.is_stepped(variable)
            return self._variables.context(variable, has_gradient=reached, has_step=stepped)
        return self._variables.context(variable, has_gradient=reached)

    def _negative(self, claim: TrackedClaim, event: StepEvent, variable: Variable) -> Example:
        requires_grad = self._variables.parameter_of(variable).requires_grad
        is_held = self._variables.is_held(variable)
        broken = change_broken(claim.params, variable, requires_grad=requires_grad, is_held=is_held)
        context = self._context(claim, variable)
        return counterexample(event, Subject(variable=variable.name), *broken, context=context)


def _without_numbers(name: str) -> str:
    """The name that experts and other parts of a list have in common."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))
