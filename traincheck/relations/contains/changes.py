"""The half of *contains* that speaks of state: during A, every variable of a kind changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from traincheck.facts.awaited import ROUTED, STUCK, UNGRAPHED
from traincheck.facts.manual_updates import ByHand
from traincheck.facts.step_changes import StepChanges
from traincheck.facts.steps import is_judged, is_skipped
from traincheck.facts.variables import Variable, Variables, may_stay, select, variable_of
from traincheck.relations.example_cache import Examples, Joined
from traincheck.relations.phrasing import STEP, selector_text, short
from traincheck.schema.claims import SAMPLED_STEPS, Context, Hypothesis, Needs, sampled
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.parameter_names import paired_weights
from traincheck.schema.torch_api import LEAVES, Families
from traincheck.schema.trace_terms import EVAL_STAGE

_NEW = frozenset({"parameter@new"})
# With the norms of gradients: once these have faded, updates may round to nothing.
_UPDATED = Needs(states=sampled("parameter@step"), stats=sampled("gradient"))

# What may be claimed: (outer window, role, change) -> what it takes to see it.
TEMPLATES: Mapping[tuple[str, str, str], Needs] = {
    (STEP, "parameter", "changes"): _UPDATED,
    # Layers may run without recording the graph until the head has learned
    (STEP, "gradient", "changes"): Needs(
        states=_NEW, calls=frozenset({Families.MODULE}) | sampled(*LEAVES)
    ),
    (STEP, "gradient", "cleared"): Needs(states=_NEW | sampled("gradient@zero_grad")),
    (STEP, "buffer", "changes"): Needs(
        states=sampled("buffer@forward"), calls=frozenset({Families.MODULE})
    ),
    (Families.OPTIMIZER_STEP, "parameter", "changes"): _UPDATED,
    (Families.OPTIMIZER_STEP, "optimizer_state", "changes"): Needs(
        states=_NEW | sampled("optimizer_state@step")
    ),
}
PATIENCE = SAMPLED_STEPS.first  # scanned steps: layers that are left out at random change sooner
# A gradient of zeros, or none, explains why nothing changed: gradients are always looked at.
# So are updates: with several optimizers, only those that step are to change something.
_ALWAYS = Needs(
    calls=frozenset({Families.OPTIMIZER_STEP}),
    states=sampled("gradient@backward", "gradient@zero_grad"),
    kinds=frozenset({"step", "optimizer"}),
)


def needs(params: Mapping[str, Any]) -> Needs:
    """What it takes to decide the claim with these parameters."""
    # Gradients may come and go within backward, or be assigned: then the update tells.
    updates = Needs(states=sampled("parameter@step") if "within" in params else frozenset())
    return TEMPLATES[_template(params)] | _ALWAYS | updates


def text(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    outer, role, change = _template(params)
    who = selector_text(params)
    if outer != STEP:
        held = " it holds" if role == "parameter" else " of the parameters it holds"
        return f"During every {short(outer)}, every {who}{held} changes"
    if "within" in params:
        steps = params["within"]
        return f"Every {_owner(params)} gets a gradient within its first {steps} training steps"
    if role == "gradient":
        what = "appears or changes" if change == "changes" else "is cleared, as zero_grad does"
        return f"In every training step, the gradient of every {_owner(params)} {what}"
    return f"In every training step, every {who} changes"


def within(params: Mapping[str, Any]) -> int:
    """In how many steps, from its first on, it must happen once."""
    return int(params.get("within", 1))


def min_programs(params: Mapping[str, Any]) -> int | None:
    """In how many programs it must hold before it is said of others; None: never.

    Layers may be left out of a step, or have no part in one of several losses.
    """
    is_habit = _template(params) == (STEP, "gradient", "changes") and within(params) == 1
    return None if is_habit else 1


def _owner(params: Mapping[str, Any]) -> str:
    return selector_text({**params, "role": "parameter"})


def _template(params: Mapping[str, Any]) -> tuple[str, str, str]:
    return params["outer"], params["role"], params["change"]


class ChangeProposer:
    """Proposes each template for whole roles, and for one leaf of one module class."""

    def __init__(self) -> None:
        self._kinds: set[tuple[str, str, str]] = set()  # role, module class, leaf

    def observe(self, event: Event) -> None:
        if not isinstance(event, StateEvent) or event.change not in ("new", "replaced"):
            return
        if not may_stay(event):
            variable = variable_of(event)
            self._kinds.add((variable.role, variable.module_class, variable.leaf))

    def hypotheses(self) -> Iterator[Hypothesis]:
        for outer, role, change in TEMPLATES:
            if role == "optimizer_state":
                continue  # it changes wherever an update changes parameters, which is claimed
            base = {"outer": outer, "role": role, "change": change}
            if (outer, role, change) == (STEP, "gradient", "changes") and self._kinds:
                yield Hypothesis(relation="contains", params={**base, "within": PATIENCE})
            for found, module_class, leaf in sorted(self._kinds):
                if found == ("parameter" if role == "gradient" else role):
                    # Buffers differ in kind: statistics change, masks and position tables do not.
                    general = {**base, "leaf": leaf} if role == "buffer" else base
                    for params in (general, {**base, "leaf": leaf, "module_class": module_class}):
                        yield Hypothesis(relation="contains", params=params)


# Variables, their names, and the parameters behind them
_Population: TypeAlias = tuple[list[Variable], frozenset[str], frozenset[str]]


@dataclass(slots=True, eq=False)
class _Claim:
    """A claim and the variables it speaks of now. populations: by the optimizer that steps.

    known: what is said when all of them changed, by optimizer and modes; it is the same each time.
    lapses: of a claim about first changes, the steps without one, by name and identity. reached:
    what has changed. rests: of parameters that had changed, the steps in which they did not,
    before these are too many. fickle: names, without numbers, of what changes in some steps only.
    """

    index: int
    params: Mapping[str, Any]
    outer: str
    role: str
    change: str
    variables: list[Variable] = field(default_factory=list)
    populations: dict[tuple[str | None, bool], _Population] = field(default_factory=dict)
    known: dict[tuple[Any, ...], Examples] = field(default_factory=dict)
    lapses: dict[tuple[str, int], list[StepEvent]] = field(default_factory=dict)
    rests: dict[tuple[str, int], list[Example]] = field(default_factory=dict)
    reached: set[tuple[str, int]] = field(default_factory=set)
    fickle: set[str] = field(default_factory=set)


class ChangeDecider:
    """Decides claims about state when a step ends: an example for each window and variable.

    In a healthy run every step says the same: then the same object is given each time, which costs
    a few set operations, whatever the number of variables.
    """

    def __init__(
        self,
        claims: Sequence[tuple[int, Mapping[str, Any]]],
        variables: Variables,
        book: StepChanges,
    ) -> None:
        self._claims = [_Claim(index, params, *_template(params)) for index, params in claims]
        for claim in self._claims:
            if (claim.outer, claim.role, claim.change) not in TEMPLATES:
                raise ValueError(f"nothing is known of {dict(claim.params)}")
        self._variables = variables
        self._book = book
        self._by_hand = ByHand[str, tuple[int, Example]]()  # by name, of what no optimizer holds
        self._clean: Examples | None = None  # an answer in which nothing is doubtful
        self._modes: dict[str, bool] = {}  # module -> mode in its last forward with grad
        self._ungraphed: set[str] = set()  # modules that ran without recording the graph
        self._updates: list[CallEvent] = []
        self._have_stepped: set[str | None] = set()  # optimizers, before this step
        self._have_moved: set[str | None] = set()  # those in whose steps something changed
        self._moved_at: dict[str, int] = {}  # parameter -> the last step that changed it
        self._version = -1
        self._is_blind = False  # what a variable did once may not have been recorded
        self._trained: set[str] = set()  # names of the parameters that optimizers hold
        self._trainable: set[str] = set()  # of these, those that are not frozen, as averages are
        self._held: dict[int, Example] = {}  # id of a context -> the example that held in it
        self._last = Joined()

    def state(self, event: StateEvent) -> None:
        """Enter a change."""
        self._book.observe(event)

    def call(self, event: CallEvent) -> None:
        """Enter an update or a forward."""
        if event.family == Families.OPTIMIZER_STEP:
            if event.exception is None:
                self._updates.append(event)
        elif event.family == Families.MODULE and event.module:
            if event.grad_enabled:
                self._modes[event.module] = bool(event.training)
            elif event.stage != EVAL_STAGE:
                self._ungraphed.add(event.module)

    def finish(self) -> Examples:
        """Claims about parameters that no later step showed to be updated by hand."""
        return self._by_hand.finish()

    def step(self, event: StepEvent) -> Examples:
        """Decide all that the step tells."""
        examples: Examples = ()
        if self._by_hand.is_open:
            self._by_hand.note(self._book.changed["parameter"])
        if is_judged(event) and self._claims:
            examples = self._certain(self._last.join(self._decide(event)))
        if not self._trained.isdisjoint(self._book.changed["parameter"]):
            self._have_moved.update(update.owner for update in self._updates)
        self._moved_at.update(dict.fromkeys(self._book.changed["parameter"], event.step or 0))
        self._book.turn(event)
        self._modes.clear()
        self._ungraphed.clear()
        self._have_stepped.update(update.owner for update in self._updates)
        self._updates.clear()
        self._is_blind |= event.is_gap
        if not event.recorded:
            for claim in self._claims:
                claim.lapses.clear()
                claim.rests.clear()
        return examples

    def _certain(self, examples: Examples) -> Examples:
        """Without what may be updated by hand, and with that of earlier steps which is not."""
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
            held = self._variables.held_parameters()
            self._trained = {variable.name for variable in held}
            self._trainable = {variable.name for variable in held if variable.requires_grad}
            for claim in self._claims:
                claim.variables = select(self._variables, claim.params)
                claim.populations.clear()
                claim.known.clear()
        skipped = is_skipped(event)
        for claim in self._claims:
            if claim.outer != STEP:
                for update in self._updates:
                    yield self._window(claim, event, update)
            elif not (skipped and claim.role == "parameter"):
                yield self._window(claim, event, None)

    def _window(self, claim: _Claim, event: StepEvent, update: CallEvent | None) -> Examples:
        book, role = self._book, claim.role
        owner = update.owner if update is not None else None
        variables, names, bases = self._population(claim, owner)
        if claim.change == "cleared":
            changed: AbstractSet[str] = book.cleared
        elif update is None:
            changed = book.changed[role]
        else:
            changed = self._during(update) - book.unknown[role]
        if within(claim.params) > 1:
            changed = changed | (book.changed["parameter"] & self._trainable)
        if names <= changed and (role in ("buffer", "gradient") or bases <= book.reached):
            modes = [self._mode(variable) for variable in variables] if role == "buffer" else ()
            key = (owner, *(update.owner for update in self._updates), *modes)
            known = claim.known.get(key)
            if known is None:
                contexts = [self._context(claim, variable) for variable in variables]
                known = tuple((claim.index, self._positive(context)) for context in contexts)
                claim.reached |= {(v.name, v.identity) for v in variables}
                claim.known[key] = known
            return known
        return tuple(self._each(claim, event, variables, changed))

    def _during(self, update: CallEvent) -> AbstractSet[str]:
        """What changed in an update, and in those that it made by means of other optimizers."""
        found: set[str] = set()
        for other in self._updates:
            if other.start_ns >= update.start_ns:
                found |= self._book.after.get(other.span, set())
            if other is update:  # those that began later and ended before lie within it
                break
        return found

    def _population(self, claim: _Claim, owner: str | None) -> _Population:
        """The variables a window can speak of, their names, and the parameters behind them."""
        # What no optimizer holds changes where the program updates it: asked beside updates only
        is_by_hand = claim.outer == STEP and claim.role == "parameter" and not self._updates
        found = claim.populations.get((owner, is_by_hand))
        if found is None:
            variables = claim.variables
            if is_by_hand:
                variables = [v for v in variables if self._variables.is_held(v)]
            if claim.outer != STEP and claim.role == "parameter":
                variables = [v for v in variables if self._variables.held_by(owner, v)]
            elif claim.outer != STEP:
                variables = [v for v in variables if v.owner == owner]
            names = frozenset(variable.name for variable in variables)
            bases = frozenset(variable.base for variable in variables)
            found = claim.populations[owner, is_by_hand] = (variables, names, bases)
        return found

    def _each(
        self,
        claim: _Claim,
        event: StepEvent,
        variables: Sequence[Variable],
        changed: AbstractSet[str],
    ) -> Iterator[tuple[int, Example]]:
        for variable in variables:
            if variable.name in changed:
                key = variable.name, variable.identity
                if claim.lapses.pop(key, None):
                    claim.fickle.add(_alike(variable.name))
                claim.rests.pop(key, None)
                claim.reached.add(key)
                yield claim.index, self._positive(self._context(claim, variable))
            elif claim.change == "cleared":
                if self._is_piled(variable, event):
                    yield claim.index, self._negative(claim, event, variable)
            elif not self._is_excused(claim, variable, event):
                for example in self._overdue(claim, event, variable, changed):
                    yield claim.index, example

    def _is_piled(self, variable: Variable, event: StepEvent) -> bool:
        """Whether backward() adds to an old gradient that this step applies.

        What is never applied may be cleared later: it was computed to be looked at. And a step
        without a backward pass is the rest of one that was cut too early.
        """
        return (
            variable.name in self._book.at_start
            and event.counters.get("backward", 0) > 0
            and self._is_stepped(variable)
            and not self._is_idle(variable)
        )

    def _overdue(
        self, claim: _Claim, event: StepEvent, variable: Variable, changed: AbstractSet[str]
    ) -> Sequence[Example]:
        """Of the steps in which a change was missed, once it has been missed for too long."""
        patience = within(claim.params)
        key, alike = (variable.name, variable.identity), _alike(variable.name)
        if patience == 1:
            # Experts that stand in a list may go without once, in runs in which they never did
            is_trained = self._variables.parameter_of(variable).requires_grad
            if not (is_trained and key in claim.reached):
                return (self._negative(claim, event, variable),)
            if alike not in map(_alike, changed):
                return self._stuck(claim, event, variable)
            patience = ROUTED
        elif key in claim.reached:
            claim.fickle.add(alike)  # an expert that is not asked for in each step, say
        if alike in claim.fickle or self._is_blind:
            return ()
        module = variable.name.rpartition(".")[0]
        if module in self._ungraphed and module not in self._modes:
            patience = UNGRAPHED
        lapses = claim.lapses.setdefault(key, [])
        lapses.append(event)
        if len(lapses) < patience:
            return ()
        return (self._negative(claim, claim.lapses.pop(key)[0], variable),)

    def _stuck(self, claim: _Claim, event: StepEvent, variable: Variable) -> Sequence[Example]:
        """Of the steps in which a parameter that has moved rests, once it has for too long.

        Each with its own context: in one of them it may have had no gradient.
        """
        example = self._negative(claim, event, variable)
        if claim.role != "parameter" or not self._variables.is_held(variable):
            return (example,)
        rests = claim.rests.setdefault((variable.name, variable.identity), [])
        rests.append(example)
        step = event.step or 0
        if step - self._moved_at.get(variable.name, step - 1) < STUCK:
            return ()
        told = tuple(rests)
        rests.clear()
        return told

    def _is_excused(self, claim: _Claim, variable: Variable, event: StepEvent) -> bool:
        """Whether there is a good reason for not having changed."""
        book, variables, role = self._book, self._variables, claim.role
        if variable.name in book.unknown[role] or book.is_new(variable, event):
            return True
        if role == "buffer":
            return self._mode(variable) is None
        if claim.outer == STEP and self._is_idle(variable):
            return True
        if role == "gradient":
            return self._is_uncalled(variable)
        # Taken away by hand before the update, or of zeros that have a sign
        if any(book.left.get(variable.base) == update.span for update in self._updates):
            return True
        parameter = variables.parameter_of(variable)
        if role == "parameter" and (self._is_noise(parameter) or self._may_be_warm_up()):
            return True
        has_moved = (variable.name, variable.identity) in claim.reached
        if self._is_at_rest() or (has_moved and book.is_faded(parameter)):
            return True
        rates = (book.rates, event.lr)
        return variable.base in book.zero or variables.rate_is_zero(parameter, rates, book.highest)

    def _is_idle(self, variable: Variable) -> bool:
        """Whether the variable is not being trained in this step.

        It may belong to a loss network, whose whole model is in no optimizer; images may be all
        that is optimized. Or it may belong to an optimizer whose turn it is not: then another one
        steps, and no gradient reaches the variable, or one that is on its way to something else, as
        through a critic. Where nothing that an optimizer holds moves, it may be the one that
        should.
        """
        if variable.model not in self._variables.held_models():
            is_trained = not self._trained.isdisjoint(self._book.changed["parameter"])
            return is_trained or not self._variables.optimizers.is_of_models
        stepped = {update.owner for update in self._updates}
        holders = self._variables.holders(variable)
        if not stepped or not holders or not stepped.isdisjoint(holders):
            return False
        takes_turns = not self._have_stepped.isdisjoint(holders)
        return takes_turns or variable.base not in self._book.reached

    def _is_uncalled(self, variable: Variable) -> bool:
        """Whether other models run in this step, and its own does not: it is trained later."""
        called = {module.partition(".")[0] for module in self._modes}
        return bool(called) and variable.model not in called

    def _may_be_warm_up(self) -> bool:
        """Whether a learning rate of zero may explain why the first step changed nothing at all.

        Before the first step ends the rate has not been told.
        """
        book = self._book
        return (
            not book.rates
            and bool(self._updates)
            and self._trained.isdisjoint(book.changed["parameter"])
            and not self._trained.isdisjoint(book.reached - book.zero)
        )

    def _is_at_rest(self) -> bool:
        """Whether optimizers that search, as LBFGS does, find nothing better any more."""
        return (
            bool(self._updates)
            and all(u.has_closure and u.owner in self._have_moved for u in self._updates)
            and self._trained.isdisjoint(self._book.changed["parameter"])
        )

    def _mode(self, buffer: Variable) -> bool | None:
        """The mode of the module that owns a buffer, else of its model; None if neither ran."""
        model = self._modes.get(buffer.model)
        return self._modes.get(buffer.name.rpartition(".")[0], model)

    def _is_noise(self, parameter: Variable) -> bool:
        """Whether the update may be lost to rounding, while others move.

        A single number comes to rest where its update changes sign. Before a normalization a bias
        has no effect: its gradient is noise, while the weight beside it moves. Or both are moved
        by an average, and neither is trained.
        """
        moved = self._book.changed["parameter"]
        beside = paired_weights(parameter.name).intersection(moved)
        is_beside = bool(beside)
        if not (self._variables.is_held(parameter) and parameter.name in self._book.reached):
            found = map(self._variables.by_role["parameter"].get, beside)
            is_frozen = not any(one is None or one.requires_grad for one in found)
            return is_beside and is_frozen and not parameter.requires_grad
        return not self._trained.isdisjoint(moved) if parameter.is_single else is_beside

    def _context(self, claim: _Claim, variable: Variable) -> Context:
        role = claim.role
        if role == "gradient":  # whether there is one is what is asked
            return self._variables.context(variable)
        if role == "buffer":
            return self._variables.context(variable, training=self._mode(variable))
        reached = self._book.has_gradient(variable.base) or (
            # An update proves it, where optimizers step as soon as there is one, within backward.
            variable.base in self._book.changed["parameter"] and self._variables.is_held(variable)
        )
        if claim.outer == STEP:  # gradients may have been computed to look where they point
            stepped = self._is_stepped(variable)
            return self._variables.context(variable, has_gradient=reached, has_step=stepped)
        return self._variables.context(variable, has_gradient=reached)

    def _is_stepped(self, variable: Variable) -> bool:
        """Whether an optimizer stepped that holds a variable; any, where none does."""
        holders = self._variables.holders(variable)
        return bool(self._updates) and (
            not holders or any(update.owner in holders for update in self._updates)
        )

    def _positive(self, context: Context) -> Example:
        known = self._held.get(id(context))  # contexts are shared and kept
        if known is None:
            known = self._held[id(context)] = Example(holds=True, context=context)
        return known

    def _negative(self, claim: _Claim, event: StepEvent, variable: Variable) -> Example:
        role = claim.role
        requires_grad = self._variables.parameter_of(variable).requires_grad
        is_held = self._variables.is_held(variable)
        what = "gradient" if role == "gradient" else "value"
        if claim.change == "cleared":
            expected = f"the gradient of {variable.name} is cleared, as zero_grad does"
            observed = "the gradient of an earlier step is still there"
            symptom = Symptom.MISSING_ZERO_GRAD if is_held else Symptom.NOT_IN_OPTIMIZER
        else:
            expected = f"the {what} of {variable.name} changes"
            observed = "no gradient" if role == "gradient" else "unchanged"
            symptom = _symptom(role, requires_grad=requires_grad, is_held=is_held)
            if symptom is Symptom.FROZEN and _OF_COPIES.search(variable.name):
                symptom = Symptom.STATE_UNCHANGED  # nobody wanted a gradient for it
        if role != "buffer" and not requires_grad:
            observed += "; requires_grad is False"
        elif role != "buffer" and not is_held:
            observed += "; held by no optimizer"
        return Example(
            holds=False,
            context=self._context(claim, variable),
            step=event.step,
            rank=event.rank,
            subject=Subject(variable=variable.name),
            expected=expected,
            observed=observed,
            evidence=(event,),
            symptom=symptom,
        )


# What people call models that follow another one.
_OF_COPIES = re.compile(
    r"(^|[._])(avg|ema)([._]|$)|average|momentum|shadow|target|teacher|_k\.|#\d", re.IGNORECASE
)


def _alike(name: str) -> str:
    """What experts and other parts of a list have in common."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _symptom(role: str, *, requires_grad: bool, is_held: bool) -> Symptom:
    if role == "buffer":
        return Symptom.STATE_UNCHANGED
    if not requires_grad:
        return Symptom.FROZEN
    if role == "gradient":
        return Symptom.NO_GRADIENT
    if role == "optimizer_state":
        return Symptom.STATE_UNCHANGED
    return Symptom.NOT_UPDATED if is_held else Symptom.NOT_IN_OPTIMIZER
