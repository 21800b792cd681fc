"""Helpers of rules about activations: function, module and statistics of each activation."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from traincheck.readings.small_samples import units_of
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Subject, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_summary

ACTIVATIONS = Needs(calls=frozenset({Families.MODULE}), stats=frozenset({"activation"}))
_MOST_PLACES = 4096


class Place(NamedTuple):
    """The place of an activation. number: index of the call in one call of the whole model."""

    module: str
    function: str
    number: int

    @property
    def label(self) -> str:
        """``Net.act``, ``the 2nd relu in Net``."""
        if not self.function:
            return self.module
        which = "" if self.number == 0 else f" (call {self.number + 1})"
        return f"{self.function}{which} in {self.module}"

    @property
    def subject(self) -> Subject:
        return Subject(module=self.module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The statistics of one call. is_output: whether the model's result has the same shape."""

    place: Place
    kind: str
    summary: TensorSummary
    event: CallEvent
    is_output: bool = False

    @property
    def stats(self) -> dict[str, float]:
        return self.summary.stats or {}

    @property
    def samples(self) -> int:
        """The number of values of each unit: of a channel in images, else of the last dim."""
        units = self.units
        return prod(self.summary.shape) // units if units else 0

    @property
    def units(self) -> int:
        """The number of units of the activation."""
        return units_of(self.summary.shape)


class ActivationRule(BuiltInRule):
    """Collects the activations of each model call and judges them when the call ends."""

    def __init__(self) -> None:
        super().__init__()
        self._inside: dict[int, list[CallEvent]] = {}  # functions, by the span of their caller
        self._waiting: list[tuple[Place, CallEvent]] = []
        self._calls: Counter[tuple[str, str]] = Counter()

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, CallEvent):
            return ()
        if event.family != Families.MODULE:
            if event.parent is not None and _numbers(event) is not None:
                self._inside.setdefault(event.parent, []).append(event)
            return ()
        inside = self._inside.pop(event.span, None) if self._inside else None
        if event.module is not None:
            if _numbers(event) is not None:
                self._wait(event.module, "", event)
            else:
                for call in inside or ():
                    self._wait(event.module, kind_of(call.api), call)
        if not event.root:
            return ()
        waiting, self._waiting = self._waiting, []
        self._calls.clear()
        self._inside.clear()
        if not waiting or not event.grad_enabled:
            return []
        outputs = {summary.shape for summary in _tensors(event.result)}
        found: list[Violation] = []
        for place, call in waiting[:_MOST_PLACES]:
            summary = tensor_summary(call.result)
            if summary is not None:
                self.triggered += 1
                is_output = summary.shape in outputs
                kind = kind_of(call.api)
                found += self.judge(
                    Look(place=place, kind=kind, summary=summary, event=call, is_output=is_output)
                )
        return found

    @abstractmethod
    def judge(self, look: Look) -> Sequence[Violation]:
        """Return the violations that one call proves, together with earlier calls."""

    def _wait(self, module: str, function: str, call: CallEvent) -> None:
        number = self._calls[module, function]
        self._calls[module, function] += 1
        self._waiting.append((Place(module, function, number), call))


@dataclass(slots=True)
class Streak:
    """Consecutive records of one place that show a fault. steps: the number of their steps."""

    steps: int = 0
    first: int | None = None
    last: int | None = None
    samples: int = 0
    is_reported: bool = False

    def add(self, look: Look) -> None:
        step = look.event.step
        self.samples += look.samples
        if self.steps == 0:
            self.first = step
        if step != self.last:
            self.steps += 1
            self.last = step


@lru_cache(maxsize=1024)
def kind_of(api: str) -> str:
    """``relu`` for the function and for the module."""
    name = api.removesuffix(".forward").rpartition(".")[2]
    return name.lower().rstrip("_").replace("_", "")


def _numbers(event: CallEvent) -> Any:
    """The statistics of an activation; other modules have at most the count of NaN."""
    result = event.result
    stats = result.get("stats") if isinstance(result, dict) else None
    return stats if stats and "zeros" in stats else None


def _tensors(value: Any, depth: int = 0) -> Iterator[TensorSummary]:
    summary = tensor_summary(value)
    if summary is not None:
        yield summary
    elif isinstance(value, list):
        for item in value:
            yield from _tensors(item, depth + 1)
    elif isinstance(value, dict) and isinstance(value.get("dict"), dict):
        for item in value["dict"].values():
            yield from _tensors(item, depth + 1)
