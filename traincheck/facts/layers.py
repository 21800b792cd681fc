"""Layers that act in one mode only, and layers that belong to no model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.facts.kinds import SHOWN, Kind
from traincheck.facts.reader import FactReader
from traincheck.readings.provider import RunStates
from traincheck.readings.step_facts import DISCOVERY, MODES
from traincheck.readings.training_state import TrainingState
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.facts import Fact
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_FEW = 3  # steps
_MOSTLY = 0.5
# Modules of torch that hold parameters, as a rule
_HOLDERS = re.compile(
    r"torch\.nn\.modules\.(linear|conv|batchnorm|instancenorm|normalization|sparse|rnn|transformer)"
    r"\.(?!Identity)|\.PReLU\.|\.MultiheadAttention\."
)

TRAINED = Kind(
    "signal.dropout in training",
    {
        "no dropout": "no layer with a dropout probability is called with grad",
        "drops": "each of {all:dropout layer} of {of} drops when it is called with grad",
        "idle in part": "{number} of {all:dropout layer} of {of} drop nothing in any call with "
        "grad: {names}",
        "idle": "in training, none of {all:dropout layer} of {of} drops anything in a call with "
        "grad",
    },
    look="step",
)
EVALUATED = Kind(
    "evaluation.dropout",
    {
        "no dropout": "no layer with a dropout probability is called without grad",
        "idle": "none of {all:dropout layer} of {of} drops anything in a call without grad",
        "drops at times": "{number} of {all:dropout layer} of {of} drop in some calls without "
        "grad: {names}",
        "drops": "{number} of {all:dropout layer} of {of} drop in calls without grad: {names}",
    },
    look="step",
)
OUTSIDE = Kind(
    "signal.layers of no model",
    {
        "none": "each layer with parameters that a model calls is a part of a model",
        "some": "within the calls of models, {names} is called, which is not in any model",
    },
    look="step",
)


@dataclass(slots=True)
class _Layers:
    """The dropout layers of one model: in how many steps each drops and is idle."""

    steps: int = 0
    drops: Counter[str] = field(default_factory=Counter)
    idle: Counter[str] = field(default_factory=Counter)


class Dropouts(FactReader):
    """Follows the dropout layers of each model, in calls with grad and without."""

    kinds: ClassVar = (TRAINED, EVALUATED)
    needs: ClassVar = DISCOVERY | MODES
    observes: ClassVar = Needs(kinds=frozenset({"step"}))
    uses: ClassVar = (TrainingState,)

    def __init__(self) -> None:
        self._known: dict[tuple[bool, str], _Layers] = {}  # with grad, model

    def bind(self, run_states: RunStates) -> None:
        self._state = run_states.of(TrainingState)

    def observe(self, event: Event) -> None:
        ended = self._state.ended
        if not isinstance(event, StepEvent) or ended is None or not ended.is_complete:
            return
        for forward in ended.forwards:
            if forward.dropping or forward.idle:
                key = forward.call.grad_enabled, forward.path
                layers = self._known.setdefault(key, _Layers())
                layers.steps += 1
                layers.drops.update(forward.dropping.keys())
                layers.idle.update(forward.idle.keys() - forward.dropping.keys())

    def facts(self) -> Iterator[Fact]:
        for kind, with_grad in ((TRAINED, True), (EVALUATED, False)):
            found = {of: each for (grad, of), each in self._known.items() if grad is with_grad}
            if not found:
                yield Fact(kind=kind.name, seen_as="no dropout")
            for of, layers in found.items():
                whole = layers.drops.keys() | layers.idle.keys()
                still = whole - layers.drops.keys()
                shown = still if with_grad else layers.drops.keys()
                seen_as = (
                    _seen_in_training(len(still), len(whole))
                    if with_grad
                    else "idle"
                    if still == whole
                    else "drops at times"
                    if layers.idle
                    else "drops"
                )
                yield Fact(
                    kind=kind.name,
                    of=of,
                    seen_as=seen_as,
                    values={
                        "number": len(shown),
                        "all": len(whole),
                        "names": joined(sorted(shown), SHOWN),
                    },
                    count=layers.steps,
                    looks=layers.steps,
                )


def _seen_in_training(still: int, whole: int) -> str:
    return "drops" if not still else "idle" if still == whole else "idle in part"


class OutsideLayers(FactReader):
    """Counts calls of layers that no model owns, within the calls of models."""

    kinds: ClassVar = (OUTSIDE,)
    needs: ClassVar = Needs(calls=frozenset({Families.MODULE}), kinds=frozenset({"step"}))
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._steps = 0
        self._seen = Counter[str]()  # steps, by class
        self._now: set[str] = set()
        self._is_called = False

    def observe(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            self._steps += self._is_called
            self._seen.update(self._now)
            self._now, self._is_called = set(), False
        elif isinstance(event, CallEvent) and event.grad_enabled:
            self._is_called |= event.module is not None
            if event.module is None and event.parent is not None and _HOLDERS.search(event.api):
                self._now.add(event.api.removesuffix(".forward").rpartition(".")[2])

    def facts(self) -> Iterator[Fact]:
        if self._steps < _FEW:
            return
        found = {name: steps for name, steps in self._seen.items() if steps > _MOSTLY * self._steps}
        yield Fact(
            kind=OUTSIDE.name,
            seen_as="some" if found else "none",
            values={"names": joined(sorted(found), SHOWN)},
            count=max(found.values(), default=self._steps),
            looks=self._steps,
        )


READERS = (Dropouts, OutsideLayers)
