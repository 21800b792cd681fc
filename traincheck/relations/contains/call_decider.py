"""Propose and decide which calls, landmarks included, a module call or a step holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.readings.distributed.rank_steps import FIRST
from traincheck.readings.losses import LOSSES
from traincheck.readings.step_changes import StepChanges
from traincheck.readings.steps import is_judged
from traincheck.readings.variables import Variables
from traincheck.relations.awaited_changes import Awaited
from traincheck.relations.base import SATISFIED, OfProgram, ProposerBase, counterexample
from traincheck.relations.contains.call_claims import LANDMARKS, PATIENCE, PATIENT, UPDATES, is_loss
from traincheck.relations.contains.messages import call_expected, call_observed, landmark_broken
from traincheck.relations.iterations import Examples, PositiveExamples
from traincheck.relations.phrasing import (
    STEP,
    format_args,
    is_library,
    is_user_api,
    is_wrapper,
    topic_of,
)
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.marks import text_length
from traincheck.schema.torch_api import ATTENTION, COMPILED, Families


class CallDecider(OfProgram):
    """Decides when the outer call ends."""

    def __init__(self, claims: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        self._params = dict(claims)
        self._inner: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        self._outer: dict[str, list[int]] = defaultdict(list)
        for index, params in claims:
            self._inner[params["inner"]].append((index, dict(params["args"])))
            self._outer[params["outer"]].append(index)
        self._of_losses = {index for index, params in claims if params["inner"] in LOSSES}
        # Of a model that is compiled now, and was not, only some of the calls are seen.
        self._was_compiled = COMPILED in self._outer
        self._is_compiled = False
        self._last = dict.fromkeys(self._params, -1)  # claim -> start of its last inner call
        self._unlike: dict[int, CallEvent] = {}  # claim -> last inner call with other arguments
        self._unrecorded_ns = -1  # calls until then may not have been recorded
        self._positives = PositiveExamples()
        self._complete: dict[tuple[Any, ...], Examples] = {}

    def call(self, event: CallEvent) -> Examples:
        """Enter a call; decide the claims about the calls within it."""
        # Calls are recorded when they end, the inner before the outer: an inner call lies within
        # the outer one if it began no earlier. No book of open calls is needed.
        self._is_compiled |= event.api == COMPILED and not self._was_compiled
        inner = self._inner.get(event.api)
        if inner is not None and event.exception is None:
            for index, args in inner:
                if not args or all(event.args.get(name) == value for name, value in args.items()):
                    self._last[index] = event.start_ns
                else:
                    self._unlike[index] = event
        claims = self._outer.get(event.api)
        return () if claims is None or event.exception is not None else self._ended(event, claims)

    def step(self, event: StepEvent) -> None:
        """Take note of a step that was not recorded."""
        if not event.recorded:
            self._unrecorded_ns = event.time_ns

    def _ended(self, event: CallEvent, claims: Sequence[int]) -> Examples:
        """The examples of an outer call."""
        start, last = event.start_ns, self._last
        claims = [i for i in claims if self._program.fits(self._params[i])]
        if not event.grad_enabled:  # a model that computes its own loss is used without labels
            claims = [i for i in claims if i not in self._of_losses]
        if all(last[i] >= start for i in claims):
            modes = event.training, event.autocast, event.grad_enabled
            key = (event.api, *modes, self._program.name)
            known = self._complete.get(key)
            if known is None:
                example = self._positive(event)
                known = self._complete[key] = tuple((i, example) for i in claims)
            return known
        if start <= self._unrecorded_ns or self._is_compiled:  # the inner call may be hidden
            claims = [i for i in claims if last[i] >= start]
        return [(i, self._judge(i, event)) for i in claims]

    def _judge(self, index: int, event: CallEvent) -> Example:
        start, params, unlike = event.start_ns, self._params[index], self._unlike.get(index)
        if self._last[index] >= start:
            return self._positive(event)
        args = params["args"]
        if unlike is not None and unlike.start_ns >= start:
            expected, observed = (
                format_args(args),
                format_args({name: unlike.args.get(name) for name in args}),
            )
        else:
            unlike = None
            expected, observed = call_expected(params, event.api), call_observed(event.module)
        return counterexample(
            event,
            Subject(api=params["inner"]),
            expected,
            observed,
            Symptom.MISSING_CALL if unlike is None else Symptom.WRONG_VALUE,
            context=self._positive(event).context,
            evidence=(event,) if unlike is None else (unlike, event),
            stage=event.stage,
        ).replace(topic=topic_of(args))

    def _positive(self, event: CallEvent) -> Example:
        autocast = event.autocast or "off"
        return self._positives.with_features(training=event.training, autocast=autocast)


_COSMETIC = frozenset({"inplace", "out"})  # arguments that change no result
# Arguments that depend on the batch: without padding, attention gets no mask and a flag instead
_OF_DATA = {ATTENTION: frozenset({"is_causal"})}
_MODE_ARGUMENT = "training"
_AS_MANY = 4  # times the batches that an update took
_MAX_TEXT = 40  # characters; a longer one is data, not a flag
_MIN_CALLS = 2  # of the outer API, before claims about its inside


class CallProposer(ProposerBase):
    """Proposes calls directly inside module calls, and the landmarks of a step."""

    def __init__(self) -> None:
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
        """The term for enough steps and an optimizer that could have stepped."""
        is_asked = self._seen >= PATIENCE and self._has_optimizer
        return iter((PATIENT,) if is_asked else ())

    def observe(self, event: Event) -> None:
        if isinstance(event, OptimizerEvent):
            self._has_optimizer = True
        elif isinstance(event, CallEvent):
            inside = self._open.pop(event.span, ())
            # Whether a call inside another is characteristic of the program.
            if event.parent is not None and (
                event.family == Families.MODULE
                or event.api.startswith("torch.nn.functional.")
                or not is_library(event.api)
            ):
                self._open[event.parent].append(event)
            if event.family == Families.MODULE:
                self._has_mode |= event.root and event.grad_enabled
                if not is_wrapper(event.api):
                    self._learn(event, inside)
        elif isinstance(event, StepEvent):
            self._open.clear()  # no call reaches over the end of a step
            self._seen += event.recorded
            self._count(event)

    def _count(self, step: StepEvent) -> None:
        self._since += 1
        for family, (counters, _) in LANDMARKS.items():
            if any(step.counters.get(name, 0) for name in counters):
                self._steps[family] += 1
                if family == Families.OPTIMIZER_STEP:
                    # Longer intervals have gradients that no step was to apply
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
                    # An update may take more batches in other runs
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
        """Claims that this run supports if another one evaluated too, or called more often."""
        for outer, inner in sorted(self._present):
            if _is_internal(outer, inner):
                continue
            modes = self._values[outer, inner].get(_MODE_ARGUMENT, set())
            supported = [
                {_MODE_ARGUMENT: mode} for mode in (True, False) if modes in ({True}, {False})
            ]
            if self._calls[outer] < _MIN_CALLS:
                supported += self._arguments(outer, inner)
            for args in supported:
                yield Hypothesis(relation="contains", params=self._params(outer, inner, args))

    def _params(self, outer: str, inner: str, args: Mapping[str, Any]) -> dict[str, Any]:
        params = {"outer": outer, "inner": inner, "args": dict(sorted(args.items()))}
        is_own = is_user_api(outer) or is_loss(outer)
        if is_own and self._program.name is not None:
            params["program"] = self._program.name
        return params

    def _arguments(self, outer: str, inner: str) -> Iterator[dict[str, Any]]:
        values = self._values[outer, inner]
        # The mode is claimed only if both modes were seen: else its rule is not known.
        modes = values.get(_MODE_ARGUMENT, set())
        for mode in (True, False) if modes == {True, False} else ():
            yield {_MODE_ARGUMENT: mode}
        fixed = {
            name: next(iter(found))
            for name, found in values.items()
            if len(found) == 1 and None not in found and name != _MODE_ARGUMENT
        }
        if not is_loss(outer):
            yield {}
        if fixed:
            yield fixed


def _is_internal(outer: str, inner: str) -> bool:
    """Whether a call is internal to the library: another version may differ."""
    return is_library(outer) and is_library(inner) and not is_loss(outer)


class LandmarkDecider:
    """Decides when a step ends, by the counters of the step."""

    def __init__(
        self,
        claims: Sequence[tuple[int, Mapping[str, Any]]],
        variables: Variables,
        changes: StepChanges,
    ) -> None:
        self._within = [(i, int(p["within"])) for i, p in claims if "within" in p]
        self._claims = [(index, LANDMARKS[params["inner"]]) for index, params in claims]
        self._every = {i: p["inner"] for i, p in claims if "within" not in p}
        # The first of the last steps in a row without an update that was due, and how many
        self._lapse: tuple[StepEvent | None, int] = (None, 0)
        self._awaited = Awaited(variables, changes)
        self._has_stepped = False
        self._last: Examples = ()

    def backward(self, event: CallEvent) -> None:
        """Enter a backward pass."""
        self._awaited.backward(event)

    def step(self, event: StepEvent) -> Examples:
        """Decide what every training step holds."""
        self._awaited.read()
        if _has(event, UPDATES):
            self._awaited.updated(self._lapse[1])
            self._lapse = (event, 0)
        if not is_judged(event):
            if not event.recorded:
                self._lapse = (event, 0)
            self._has_stepped &= event.recorded  # after a gap nothing is known of gradients
            return ()
        examples: list[tuple[int, Example]] = []
        for index, (counters, _) in self._claims:
            if _has(event, counters):
                examples.append((index, SATISFIED))
            elif index in self._every and self._is_due(self._every[index], event):
                examples.append((index, _missing(self._every[index], event)))
        examples += self._lapsed(event)
        self._has_stepped = True
        if examples == self._last:  # by identity of the examples: one comparison each
            return self._last
        self._last = examples
        return examples

    def finish(self) -> Examples:
        """A run that ends without an update, after many of them, proves that one is missing."""
        first, count = self._lapse
        if first is None or not self._awaited.has_updated:
            return ()
        return [
            (index, _missing(Families.OPTIMIZER_STEP, first, count))
            for index, within in self._within
            if self._awaited.needed(within, is_over=True) <= count < self._awaited.needed(within)
        ]

    def _lapsed(self, event: StepEvent) -> Iterator[tuple[int, Example]]:
        """The claims that so many steps without an update break."""
        is_updated = _has(event, UPDATES)
        if is_updated or not self._within or not self._awaited.is_update_due(event):
            return
        first, count = self._lapse
        first = first if count and first is not None else event
        self._lapse = (first, count + 1)
        for index, within in self._within:
            needed = self._awaited.needed(within)
            if (count + 1) % needed == 0:
                yield index, _missing(Families.OPTIMIZER_STEP, first, count + 1)

    def _is_due(self, family: str, event: StepEvent) -> bool:
        """Whether a landmark that a step lacks was due in it."""
        if family != Families.ZERO_GRAD:
            return True
        return self._has_stepped and _adds(event) and self._awaited.is_added_to()


def _has(event: StepEvent, counters: Sequence[str]) -> bool:
    return any(event.counters.get(name, 0) for name in counters)


def _adds(event: StepEvent) -> bool:
    """Whether a step shows a complete iteration whose backward adds to gradients it applies.

    The first step has nothing to clear yet. Gradients may also be computed to look where they
    point. A step without a forward or batch is the rest of a step that was cut too early.
    """
    counts = event.counters
    began = counts.get("forward", 0) or counts.get("batch", 0)
    applied = counts.get("optimizer_step", 0) or counts.get("scaler_step", 0)
    return bool(began and applied and counts.get("backward", 0))


def _missing(family: str, event: StepEvent, steps: int = 1) -> Example:
    """A step that lacks a landmark, or the first of several in a row."""
    return counterexample(event, Subject(api=family), *landmark_broken(family, steps))
