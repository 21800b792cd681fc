"""The half of *contains* that speaks of calls: during A, B is called."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.awaited import FIRST
from traincheck.facts.programs import ProgramName
from traincheck.facts.step_changes import ADDED, StepChanges
from traincheck.facts.steps import is_judged
from traincheck.facts.variables import Variables
from traincheck.relations import awaited_changes
from traincheck.relations.awaited_changes import Awaited
from traincheck.relations.contains.modal import MODES, Modes
from traincheck.relations.example_cache import Examples
from traincheck.relations.phrasing import (
    STEP,
    is_library,
    is_private,
    is_wrapper,
    short,
    shown,
)
from traincheck.relations.readings.table import LOSSES
from traincheck.relations.topics import topic_of
from traincheck.schema.claims import Context, Hypothesis, Needs, within_modules
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.hidden import text_length
from traincheck.schema.torch_api import ATTENTION, COMPILED, LOSS_MODULES, MODAL, Families
from traincheck.schema.values import tensors_in

# What every training step holds -> the counters that prove it, and what its absence means.
LANDMARKS: Mapping[str, tuple[tuple[str, ...], Symptom]] = {
    Families.OPTIMIZER_STEP: (("optimizer_step", "scaler_step"), Symptom.MISSING_STEP),
    Families.ZERO_GRAD: (("zero_grad",), Symptom.MISSING_ZERO_GRAD),
    Families.BACKWARD: (("backward",), Symptom.NO_BACKWARD),
}
_UPDATES, _ = LANDMARKS[Families.OPTIMIZER_STEP]
_COSMETIC = frozenset({"inplace", "out"})  # arguments that change no result
# Arguments that follow the batch: without padding, attention is given no mask, and says so
_OF_DATA = {ATTENTION: frozenset({"is_causal"})}
_MODE_ARGUMENT = "training"
_MODE_FAMILIES = frozenset({Families.BACKWARD, Families.ZERO_GRAD, Families.OPTIMIZER_STEP})
_OF_STEP = {Families.ZERO_GRAD: ADDED, Families.MODULE: Families.BACKWARD}
_PATIENT = "an optimizer, and steps enough to be patient"
PATIENCE = 8  # steps: searches look where a gradient points before they go
_AS_MANY = 4  # times the batches that an update took
_MAX_TEXT = 40  # characters; a longer one is data, not a flag
_MIN_CALLS = 2  # of the outer API, before its inside is worth a claim


def needs(params: Mapping[str, Any]) -> Needs:
    """What it takes to decide the claim with these parameters."""
    step = frozenset({"step"})
    if params["outer"] != STEP:  # steps tell where calls may be missing from the trace
        calls = within_modules(params["outer"], params["inner"], COMPILED)
        return Needs(calls=calls, kinds=step | ({"mark"} if "program" in params else set()))
    if params["inner"] != Families.MODULE:
        return Needs(kinds=step) | awaited_changes.needs(params["inner"])
    return (
        Needs(
            calls=frozenset(
                {Families.MODULE, Families.BACKWARD, Families.ZERO_GRAD, Families.OPTIMIZER_STEP}
            ),
            states=frozenset({"parameter@new"}),
            kinds=step | {"optimizer"},
        )
        | MODES
    )


def text(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    outer, inner, args = params["outer"], params["inner"], params.get("args", {})
    if inner == Families.MODULE:
        return "In every training step, the model runs in training mode"
    how = f" with {shown(args)}" if args else ""
    if "within" in params:
        return f"{short(inner)} is called at least once in {params['within']} training steps"
    if outer == STEP:
        return f"In every training step, {short(inner)} is called{how}"
    return f"During every {short(outer)}, {short(inner)} is called{how}"


def min_programs(params: Mapping[str, Any]) -> int | None:
    """In how many programs it must hold before it is said of others; None: never.

    Gradients are also computed to look where they point, with no step of an optimizer after.
    """
    habits = (Families.OPTIMIZER_STEP, Families.BACKWARD)  # a batch may be left out
    is_habit = params["outer"] == STEP and params["inner"] in habits and "within" not in params
    return None if is_habit else 1


def antecedent(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run must have to be asked: within so many steps, as many of them.

    Where no backward runs, no mode is trained in. Where it adds to no gradient, and the program
    clears them in its own way, none need be cleared by zero_grad.
    """
    if "within" in params:
        return {"api": _PATIENT}
    of_step = _OF_STEP.get(params["inner"]) if params["outer"] == STEP else None
    return params if of_step is None else {**params, "api": of_step}


class CallProposer:
    """Proposes what is called directly inside module calls, and the landmarks of a step."""

    def __init__(self) -> None:
        self._program = ProgramName()
        self._open: dict[int, list[CallEvent]] = defaultdict(list)  # parent -> its calls
        self._calls: Counter[str] = Counter()
        self._present: Counter[tuple[str, str]] = Counter()  # outer calls that hold an inner
        self._values: dict[tuple[str, str], dict[str, set[Any]]] = {}
        self._steps: Counter[str] = Counter()
        self._seen = 0  # steps
        self._since = self._longest = 0  # steps without an update, which another one ended
        self._has_mode = False
        self._has_optimizer = False

    def observed_terms(self) -> Iterator[str]:
        """Whether there were steps enough, and an optimizer that could have stepped."""
        is_asked = self._seen >= PATIENCE and self._has_optimizer
        return iter((_PATIENT,) if is_asked else ())

    def observe(self, event: Event) -> None:
        if isinstance(event, OptimizerEvent):
            self._has_optimizer = True
        elif isinstance(event, CallEvent):
            inside = self._open.pop(event.span, ())
            if event.parent is not None and _is_telling(event):
                self._open[event.parent].append(event)
            if event.family == Families.MODULE:
                self._has_mode |= event.root and event.grad_enabled
                if not is_wrapper(event.api):
                    self._learn(event, inside)
        elif isinstance(event, StepEvent):
            self._open.clear()  # no call reaches over the end of a step
            self._seen += event.recorded
            self._count(event)
        else:
            self._program.observe(event)

    def _count(self, step: StepEvent) -> None:
        self._since += 1
        for family, (counters, _) in LANDMARKS.items():
            if any(step.counters.get(name, 0) for name in counters):
                self._steps[family] += 1
                if family == Families.OPTIMIZER_STEP:
                    # In more steps gradients were computed that none was to apply
                    if self._since <= FIRST:
                        self._longest = max(self._longest, self._since)
                    self._since = 0

    def _learn(self, outer: CallEvent, inside: Sequence[CallEvent]) -> None:
        self._calls[outer.api] += 1
        for api in {call.api for call in inside}:
            self._present[outer.api, api] += 1
        for call in inside:
            values = self._values.setdefault((outer.api, call.api), {})
            for name, value in call.args.items():
                if name not in _COSMETIC and name not in _OF_DATA.get(call.api, ()):
                    flag = isinstance(value, (bool, str)) and text_length(str(value)) <= _MAX_TEXT
                    values.setdefault(name, set()).add(value if flag else None)

    def hypotheses(self) -> Iterator[Hypothesis]:
        for family, steps in sorted(self._steps.items()):
            if steps:
                params: dict[str, Any] = {"outer": STEP, "inner": family}
                yield Hypothesis(relation="contains", params=params)
                if family == Families.OPTIMIZER_STEP:
                    # An update may take more batches than here
                    within = max(PATIENCE, _AS_MANY * self._longest)
                    yield Hypothesis(relation="contains", params={**params, "within": within})
        if self._has_mode:
            params = {"outer": STEP, "inner": Families.MODULE, "args": {_MODE_ARGUMENT: True}}
            yield Hypothesis(relation="contains", params=params)
        for (outer, inner), present in sorted(self._present.items()):
            is_usual = self._calls[outer] >= _MIN_CALLS and 2 * present >= self._calls[outer]
            if is_usual and not _is_internal(outer, inner):
                for args in self._arguments(outer, inner):
                    yield Hypothesis(relation="contains", params=self._params(outer, inner, args))

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        """What this run can answer to one that evaluated too, or called more often."""
        for outer, inner in sorted(self._present):
            if _is_internal(outer, inner):
                continue
            modes = self._values[outer, inner].get(_MODE_ARGUMENT, set())
            told = [{_MODE_ARGUMENT: mode} for mode in (True, False) if modes in ({True}, {False})]
            if self._calls[outer] < _MIN_CALLS:
                told += self._arguments(outer, inner)
            for args in told:
                yield Hypothesis(relation="contains", params=self._params(outer, inner, args))

    def _params(self, outer: str, inner: str, args: Mapping[str, Any]) -> dict[str, Any]:
        params = {"outer": outer, "inner": inner, "args": dict(sorted(args.items()))}
        is_own = is_private(outer) or _is_loss(outer)
        if is_own and self._program.name is not None:
            params["program"] = self._program.name
        return params

    def _arguments(self, outer: str, inner: str) -> Iterator[dict[str, Any]]:
        values = self._values[outer, inner]
        # The mode is only worth a word when both were seen: else its rule cannot be known.
        modes = values.get(_MODE_ARGUMENT, set())
        for mode in (True, False) if modes == {True, False} else ():
            yield {_MODE_ARGUMENT: mode}
        fixed = {
            name: next(iter(found))
            for name, found in values.items()
            if len(found) == 1 and None not in found and name != _MODE_ARGUMENT
        }
        if not _is_loss(outer):
            yield {}
        if fixed:
            yield fixed


def _is_loss(outer: str) -> bool:
    """Whether it is a function that holds the arguments that the program gave it."""
    return outer.startswith(LOSS_MODULES)


def _is_internal(outer: str, inner: str) -> bool:
    """Whether it is only how the library does its own work: another version may do otherwise."""
    return is_library(outer) and is_library(inner) and not _is_loss(outer)


def _is_telling(event: CallEvent) -> bool:
    """Whether a call inside another says something about the program."""
    return (
        event.family == Families.MODULE
        or event.api.startswith("torch.nn.functional.")
        or not is_library(event.api)
    )


class CallDecider:
    """Decides claims about calls: when the outer call ends, or at the ``step`` event."""

    def __init__(
        self,
        claims: Sequence[tuple[int, Mapping[str, Any]]],
        variables: Variables,
        book: StepChanges,
    ) -> None:
        self._variables = variables
        self.program = ProgramName()
        self.modes = Modes()
        self._params = dict(claims)
        self._landmarks: list[tuple[int, str]] = []
        self._modes: list[int] = []
        self._inner: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        self._outer: dict[str, list[int]] = defaultdict(list)
        for index, params in claims:
            inner = params["inner"]
            if params["outer"] != STEP:
                self._inner[inner].append((index, dict(params["args"])))
                self._outer[params["outer"]].append(index)
            elif inner == Families.MODULE:
                self._modes.append(index)
            else:
                self._landmarks.append((index, LANDMARKS[inner] and inner))
        self._of_losses = {index for index, params in claims if params["inner"] in LOSSES}
        # Of a model that is compiled now, and was not, only some of the calls are seen.
        self._was_compiled = COMPILED in self._outer
        self._is_compiled = False
        self._last = dict.fromkeys(self._params, -1)  # claim -> start of its last inner call
        self._unlike: dict[int, CallEvent] = {}  # claim -> last inner call with other arguments
        self._roots: dict[str, CallEvent] = {}  # last training forward of each root
        # The first step in evaluation mode of a row, by model; None once it has been told
        self._in_eval: dict[str, Example | None] = {}
        self._due: list[tuple[int, Example]] = []  # said when an optimizer applies the gradients
        self._has_stepped = False
        self._blind_ns = -1  # what happened until then may not have been recorded
        self._patient = [(i, int(p["within"])) for i, p in claims if "within" in p]
        # The first of the last steps in a row without an update that was due, and how many
        self._lapse: tuple[StepEvent | None, int] = (None, 0)
        self._awaited = Awaited(variables, book)
        self._held: dict[tuple[Any, ...], Example] = {}
        self._whole: dict[tuple[Any, ...], Examples] = {}
        self._landmark: Examples = ()

    def call(self, event: CallEvent) -> Examples:
        """Enter a call; decide the claims about what it held."""
        # Calls are told of when they end, the inner before the outer: an inner call lies within
        # the outer one if it began no earlier. No book of open calls is needed.
        self._is_compiled |= event.api == COMPILED and not self._was_compiled
        inner = self._inner.get(event.api)
        if inner is not None and event.exception is None:
            for index, args in inner:
                if not args or _agrees(event.args, args):
                    self._last[index] = event.start_ns
                else:
                    self._unlike[index] = event
        if event.api == Families.BACKWARD:
            self._awaited.backward(event)
        if self._modes:
            if event.api in MODAL:
                self.modes.call(event)
            elif event.family == Families.MODULE:
                if event.root and event.grad_enabled:
                    self._roots[event.module or event.api] = event
            elif event.family in _MODE_FAMILIES or event.api == Families.BACKWARD:
                return self._applied(event)
        claims = self._outer.get(event.api)
        return () if claims is None or event.exception is not None else self._ended(event, claims)

    def mark(self, event: Event) -> None:
        """Enter what is no call: marks, and state that is loaded."""
        self.program.observe(event)
        self.modes.observe(event)

    def _ended(self, event: CallEvent, claims: Sequence[int]) -> Examples:
        """What there is to say of an outer call."""
        start, last = event.start_ns, self._last
        claims = [i for i in claims if self.program.fits(self._params[i])]
        if not event.grad_enabled:  # a model that computes its own loss is used without labels
            claims = [i for i in claims if i not in self._of_losses]
        if all(last[i] >= start for i in claims):
            modes = event.training, event.autocast, event.grad_enabled
            key = (event.api, *modes, self.program.name)
            known = self._whole.get(key)
            if known is None:
                example = self._around(event)
                known = self._whole[key] = tuple((i, example) for i in claims)
            return known
        if (
            start <= self._blind_ns or self._is_compiled
        ):  # what it held may be among what is missing
            claims = [i for i in claims if last[i] >= start]
        return [(i, self._inside(i, event)) for i in claims]

    def _inside(self, index: int, event: CallEvent) -> Example:
        holds = self._last[index] >= event.start_ns
        if holds:
            return self._around(event)
        params = self._params[index]
        args, unlike = params["args"], self._unlike.get(index)
        if unlike is not None and unlike.start_ns >= event.start_ns:
            expected, observed = shown(args), shown({name: unlike.args.get(name) for name in args})
        else:
            unlike = None
            how = f" with {shown(args)}" if args else ""
            expected = f"{short(params['inner'])} is called{how} during {short(event.api)}"
            observed = "there was no such call" + (f" in {event.module}" if event.module else "")
        return Example(
            holds=False,
            context=self._around(event).context,
            step=event.step,
            rank=event.rank,
            stage=event.stage,
            subject=Subject(api=params["inner"]),
            expected=expected,
            observed=observed,
            evidence=(event,) if unlike is None else (unlike, event),
            symptom=Symptom.MISSING_CALL if unlike is None else Symptom.WRONG_VALUE,
            topic=topic_of(args),
        )

    def _around(self, event: CallEvent) -> Example:
        """What is said of a call that held what it was to hold."""
        return self._positive(training=event.training, autocast=event.autocast or "off")

    def _positive(self, **features: Any) -> Example:
        key = tuple(features.items())
        known = self._held.get(key)
        if known is None:
            context: Context = features
            known = self._held[key] = Example(holds=True, context=context)
        return known

    def _applied(self, event: CallEvent) -> Sequence[tuple[int, Example]]:
        """What there is to say of modes, once an optimizer steps.

        Gradients that are cleared before were computed to look where they point.
        """
        if event.family == Families.OPTIMIZER_STEP:
            due, self._due = self._due, []
            return due if event.exception is None else ()
        if event.family == Families.ZERO_GRAD:
            self._due.clear()
        else:
            self._due += self._mode(event)
        return ()

    def _mode(self, backward: CallEvent) -> list[tuple[int, Example]]:
        """Judge the last forward of each root module before a backward.

        Not every forward: some programs evaluate with grad enabled before they train on. And not
        of a model that no optimizer holds, like a teacher.
        """
        examples = []
        trained = self._variables.held_models()
        for root, call in self._latest():
            if root.partition(".")[0] not in trained or not _may_require_grad(call.result):
                continue
            model = root.partition(".")[0]
            frozen = model in self._variables.frozen_models()
            example = self._positive(model=model, frozen=frozen)
            if call.training:
                self.modes.trained(root)
            elif not self.modes.matter(root, self._names_below(root)):
                continue
            else:
                example = Example(
                    holds=False,
                    context=example.context,
                    step=call.step,
                    rank=call.rank,
                    stage=call.stage,
                    subject=Subject(module=root),
                    expected=f"{root} is in training mode",
                    observed="it is in evaluation mode, and gradients are computed from its result",
                    evidence=(call, backward),
                    symptom=Symptom.EVAL_MODE,
                )
            for one in self._confirmed(root, example):
                examples += [(index, one) for index in self._modes]
        self._roots.clear()
        return examples

    def _confirmed(self, root: str, example: Example) -> Iterator[Example]:
        """What is certain of the mode of a model: one step in evaluation mode proves nothing."""
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
        """The roots and their calls, but for parts that ran by themselves before the whole did."""
        seen: set[int] = set()
        for root, call in sorted(self._roots.items(), key=lambda item: -item[1].start_ns):
            below = self._variables.below(root) if len(self._roots) > 1 else set()
            if not below or not below <= seen:
                yield root, call
            seen |= below

    def step(self, event: StepEvent) -> Examples:
        """Decide what every training step holds."""
        self._awaited.read()
        if any(event.counters.get(name, 0) for name in _UPDATES):
            self._awaited.updated(self._lapse[1])
            self._lapse = (event, 0)
        if not is_judged(event):
            self._roots.clear()
            self._due.clear()
            if not event.recorded:
                self._lapse = (event, 0)
                self._in_eval.clear()
                self._blind_ns = event.time_ns
            self._has_stepped &= event.recorded  # after a gap nothing is known of gradients
            return ()
        examples: list[tuple[int, Example]] = []
        for index, family in self._landmarks:
            counters, _ = LANDMARKS[family]
            if any(event.counters.get(name, 0) for name in counters):
                examples.append((index, self._positive()))
            elif "within" not in self._params[index] and self._is_due(family, event):
                examples.append((index, self._missing(family, event)))
        examples += self._waited(event)
        self._has_stepped = True
        if examples == self._landmark:  # by identity of the examples: one comparison each
            return self._landmark
        self._landmark = examples
        return examples

    def finish(self) -> Examples:
        """A run that ends without an update, after many of them, proves that one is missing."""
        first, count = self._lapse
        if first is None or not self._awaited.has_updated:
            return ()
        return [
            (index, self._missing(Families.OPTIMIZER_STEP, first, count))
            for index, within in self._patient
            if self._awaited.needed(within, is_over=True) <= count < self._awaited.needed(within)
        ]

    def _waited(self, event: StepEvent) -> Iterator[tuple[int, Example]]:
        """The claims that so many steps without an update break."""
        is_updated = any(event.counters.get(name, 0) for name in _UPDATES)
        if is_updated or not self._patient or not self._awaited.is_update_due(event):
            return
        first, count = self._lapse
        first = first if count and first is not None else event
        self._lapse = (first, count + 1)
        for index, within in self._patient:
            needed = self._awaited.needed(within)
            if (count + 1) % needed == 0:
                yield index, self._missing(Families.OPTIMIZER_STEP, first, count + 1)

    def _is_due(self, family: str, event: StepEvent) -> bool:
        """Whether what a step lacks was due in it."""
        if family != Families.ZERO_GRAD:
            return True
        return self._has_stepped and _adds(event) and self._awaited.is_added_to()

    def _missing(self, family: str, event: StepEvent, steps: int = 1) -> Example:
        """A step that lacks what every one has, or the first of so many in a row."""
        within, seen = "in every training step", "not called in this step"
        if steps > 1:
            within, seen = (
                f"at least once in {steps} training steps",
                f"not called in {steps} steps",
            )
        return Example(
            holds=False,
            context=self._positive().context,
            step=event.step,
            rank=event.rank,
            subject=Subject(api=family),
            expected=f"{short(family)} is called {within}",
            observed=seen,
            evidence=(event,),
            symptom=LANDMARKS[family][1],
        )


def _adds(event: StepEvent) -> bool:
    """Whether a step shows a whole iteration whose backward adds to gradients that are applied.

    In the first step there is nothing to clear yet. Gradients may also be computed to look where
    they point; a step without a forward or batch is the rest of one that was cut too early.
    """
    counts = event.counters
    began = counts.get("forward", 0) or counts.get("batch", 0)
    applied = counts.get("optimizer_step", 0) or counts.get("scaler_step", 0)
    return bool(began and applied and counts.get("backward", 0))


def _may_require_grad(result: Any) -> bool:
    """Whether gradients may flow from a result; a result that holds no tensor we know of may."""
    values = result["dict"] if isinstance(result, dict) and "dict" in result else {"": result}
    tensors = tensors_in(values).values()
    return not tensors or any(tensor.requires_grad for tensor in tensors)


def _agrees(args: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(args.get(name) == value for name, value in wanted.items())
