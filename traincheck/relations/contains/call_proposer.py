"""Propose calls that every module call of a class holds, and the landmarks of a training step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.distributed.awaited import FIRST
from traincheck.facts.programs import ProgramName
from traincheck.relations.base import ProposerBase
from traincheck.relations.contains.call_claims import LANDMARKS, PATIENCE, PATIENT, is_loss
from traincheck.relations.phrasing import (
    STEP,
    is_library,
    is_user_api,
    is_wrapper,
)
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.hidden import text_length
from traincheck.schema.torch_api import ATTENTION, Families

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
        """The term for enough steps and an optimizer that could have stepped."""
        is_asked = self._seen >= PATIENCE and self._has_optimizer
        return iter((PATIENT,) if is_asked else ())

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


def _is_telling(event: CallEvent) -> bool:
    """Whether a call inside another is characteristic of the program."""
    return (
        event.family == Families.MODULE
        or event.api.startswith("torch.nn.functional.")
        or not is_library(event.api)
    )
