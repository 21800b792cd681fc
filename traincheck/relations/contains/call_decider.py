"""Decide which calls a module call holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.facts.losses import LOSSES
from traincheck.facts.programs import ProgramName
from traincheck.relations.base import counterexample
from traincheck.relations.contains.messages import call_expected, call_observed
from traincheck.relations.example_cache import Examples, PositiveExamples
from traincheck.relations.phrasing import format_args
from traincheck.relations.topics import topic_of
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.torch_api import COMPILED


class CallDecider:
    """Decides when the outer call ends."""

    def __init__(self, claims: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        self._program = ProgramName()
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

    def mark(self, event: Event) -> None:
        """Enter an event that may name the program."""
        self._program.observe(event)

    def call(self, event: CallEvent) -> Examples:
        """Enter a call; decide the claims about the calls within it."""
        # Calls are recorded when they end, the inner before the outer: an inner call lies within
        # the outer one if it began no earlier. No book of open calls is needed.
        self._is_compiled |= event.api == COMPILED and not self._was_compiled
        inner = self._inner.get(event.api)
        if inner is not None and event.exception is None:
            for index, args in inner:
                if not args or _agrees(event.args, args):
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


def _agrees(args: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(args.get(name) == value for name, value in wanted.items())
