"""Decide whether variables change in a step or an update, and the modes of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from traincheck.readings.distributed.rank_steps import ROUTED, STUCK, UNGRAPHED
from traincheck.readings.modal_modules import ModeEffects
from traincheck.readings.optimizers import ByHand
from traincheck.readings.step_activity import StepActivity
from traincheck.readings.step_changes import StepChanges
from traincheck.readings.steps import is_judged, is_skipped
from traincheck.readings.variables import Variable, Variables, select
from traincheck.relations.base import counterexample
from traincheck.relations.contains.change_claims import TEMPLATES, template_of, within
from traincheck.relations.contains.messages import change_broken, mode_broken
from traincheck.relations.iterations import ExampleCache, Examples, PositiveExamples
from traincheck.relations.phrasing import STEP
from traincheck.schema.claims import Context
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.torch_api import MODAL, Families
from traincheck.schema.values import tensors_in

# Variables, their names, and the parameters behind them
Population: TypeAlias = tuple[list[Variable], frozenset[str], frozenset[str]]


@dataclass(slots=True, eq=False)
class TrackedClaim:
    """A claim and the variables that it covers now.

    Attributes:
        populations: the variables of a window, by the optimizer that steps.
        known: the answer if all of them changed, by optimizer and modes; it never varies.
        lapses: for a claim about first changes, the steps without one, by name and identity.
        rests: steps in which parameters did not change that had changed before.
        reached: variables that have changed.
        fickle: names, without numbers, of variables that change in some steps only.
    """

    index: int
    params: Mapping[str, Any]
    outer: str
    role: str
    change: str
    variables: list[Variable] = field(default_factory=list)
    populations: dict[tuple[str | None, bool], Population] = field(default_factory=dict)
    known: dict[tuple[Any, ...], Examples] = field(default_factory=dict)
    lapses: dict[tuple[str, int], list[StepEvent]] = field(default_factory=dict)
    rests: dict[tuple[str, int], list[Example]] = field(default_factory=dict)
    reached: set[tuple[str, int]] = field(default_factory=set)
    fickle: set[str] = field(default_factory=set)

    def select(self, variables: Variables) -> None:
        """Take the variables that exist now."""
        self.variables = select(variables, self.params)
        self.populations.clear()
        self.known.clear()

    def population(
        self, owner: str | None, variables: Variables, *, has_updates: bool
    ) -> Population:
        """The variables that a window covers, their names, and the parameters behind them.

        Args:
            owner: the optimizer whose update is the window; None if a step is.
            variables: all variables of the process.
            has_updates: whether any optimizer stepped.
        """
        is_parameter = self.role == "parameter"
        # What no optimizer holds changes where the program updates it: asked beside updates only
        is_by_hand = self.outer == STEP and is_parameter and not has_updates
        found = self.populations.get((owner, is_by_hand))
        if found is None:
            covered = self.variables
            if is_by_hand:
                covered = [v for v in covered if variables.is_held(v)]
            if self.outer != STEP and is_parameter:
                covered = [v for v in covered if variables.held_by(owner, v)]
            elif self.outer != STEP:
                covered = [v for v in covered if v.owner == owner]
            names = frozenset(variable.name for variable in covered)
            bases = frozenset(variable.base for variable in covered)
            found = self.populations[owner, is_by_hand] = (covered, names, bases)
        return found


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
            # The variables that changed in an update, and in the updates of inner optimizers.
            found: set[str] = set()
            for other in self._activity.updates:
                if other.start_ns >= update.start_ns:
                    found |= self._changes.after.get(other.span, set())
                if other is update:  # those that began later and ended before lie within it
                    break
            changed = found - changes.unknown[role]
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


_UPDATE = frozenset({Families.BACKWARD, Families.ZERO_GRAD, Families.OPTIMIZER_STEP})


class ModeDecider:
    """Decides when an optimizer applies the gradients of a forward.

    Attributes:
        claims: indices of the claims.
    """

    def __init__(self, claims: Sequence[int], variables: Variables) -> None:
        self.claims = claims
        self._variables = variables
        self._effects = ModeEffects()
        self._positives = PositiveExamples()
        self._roots: dict[str, CallEvent] = {}  # last training forward of each root module
        # The first of several steps in evaluation mode, by model; None once it was reported
        self._in_eval: dict[str, Example | None] = {}
        self._pending: list[tuple[int, Example]] = []  # until an optimizer applies the gradients

    def mark(self, event: Event) -> None:
        """Enter marks of models and loaded state."""
        self._effects.observe(event)

    def call(self, event: CallEvent) -> Examples | None:
        """Enter a call. Return examples if it belongs to an update, else None."""
        if event.api in MODAL:
            self._effects.call(event)
        elif event.family == Families.MODULE:
            if event.root and event.grad_enabled:
                self._roots[event.module or event.api] = event
        elif event.family in _UPDATE or event.api == Families.BACKWARD:
            # An optimizer step confirms examples. Gradients that are cleared first were computed to
            # look where they point.
            if event.family == Families.OPTIMIZER_STEP:
                pending, self._pending = self._pending, []
                return pending if event.exception is None else ()
            if event.family == Families.ZERO_GRAD:
                self._pending.clear()
            else:
                self._pending += self._judge(event)
            return ()
        return None

    def skip(self, *, recorded: bool) -> None:
        """A step ended that is not judged."""
        self._roots.clear()
        self._pending.clear()
        if not recorded:
            self._in_eval.clear()

    def _judge(self, backward: CallEvent) -> list[tuple[int, Example]]:
        """Judge the last forward of each root module before a backward.

        Earlier forwards do not count: some programs evaluate with grad enabled before they train
        on. Models that no optimizer holds, such as a teacher, do not count either.
        """
        examples = []
        trained = self._variables.held_models()
        for root, call in self._latest():
            model = root.partition(".")[0]
            if model not in trained or not _may_require_grad(call.result):
                continue
            frozen = model in self._variables.frozen_models()
            example = self._positives.with_features(model=model, frozen=frozen)
            if call.training:
                self._effects.trained(root)
            elif not self._effects.change_training(root, self._names_below(root)):
                continue
            else:
                example = counterexample(
                    call,
                    Subject(module=root),
                    *mode_broken(root),
                    Symptom.EVAL_MODE,
                    context=example.context,
                    evidence=(call, backward),
                    stage=call.stage,
                )
            for one in self._confirmed(root, example):
                examples += [(index, one) for index in self.claims]
        self._roots.clear()
        return examples

    def _confirmed(self, root: str, example: Example) -> Iterator[Example]:
        """The examples that are certain: one step in evaluation mode proves nothing."""
        if example.holds:
            self._in_eval.pop(root, None)
        elif root not in self._in_eval:
            self._in_eval[root] = example
            return
        else:
            first, self._in_eval[root] = self._in_eval[root], None
            if first is not None:
                yield first
        yield example

    def _names_below(self, root: str) -> list[str]:
        """The parameters of a module that an optimizer holds."""
        held = self._variables.held_parameters()
        return [v.name for v in held if v.requires_grad and v.name.startswith(f"{root}.")]

    def _latest(self) -> Iterator[tuple[str, CallEvent]]:
        """Root modules and their calls, without parts that ran alone before the whole model."""
        seen: set[int] = set()
        for root, call in sorted(self._roots.items(), key=lambda item: -item[1].start_ns):
            below = self._variables.below(root) if len(self._roots) > 1 else set()
            if not below or not below <= seen:
                yield root, call
            seen |= below


def _may_require_grad(result: Any) -> bool:
    """Whether gradients may flow from a result; a result without known tensors may."""
    values = result["dict"] if isinstance(result, dict) and "dict" in result else {"": result}
    tensors = tensors_in(values).values()
    return not tensors or any(tensor.requires_grad for tensor in tensors)
