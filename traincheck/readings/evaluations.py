"""Evaluations during training: their losses, and the weights that they used."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.readings.losses import LOSSES
from traincheck.readings.provider import RunState
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, OptimizerEvent
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.models import EvalWeights
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensor_summary

_MOST = 4096  # evaluations
_BEST = re.compile(r"(?i)(^|[^a-z])best([^a-z]|$)")  # in the name of a file

EVALUATIONS = needs_of(EvalWeights) | Needs(
    calls=LOSSES | {Families.OPTIMIZER_STEP}, kinds=frozenset({"checkpoint", "optimizer", "step"})
)


@dataclass(slots=True)
class Evaluation:
    """One evaluation after training has begun.

    Attributes:
        step: in which it took place.
        first: its first loss call.
        weights: fingerprints of the first trained parameters of the models, by name; empty where
            they were not observed.
    """

    step: int
    first: CallEvent | None = None
    weights: dict[str, str] = field(default_factory=dict)
    total: float = 0.0
    count: int = 0

    @property
    def loss(self) -> float | None:
        """The mean of its losses; None without losses, or if one is not finite."""
        return self.total / self.count if self.count and math.isfinite(self.total) else None

    def is_of(self, values: Mapping[str, object]) -> bool:
        """Whether weights with these fingerprints were evaluated."""
        return bool(self.weights) and all(
            values.get(name, "") == digest for name, digest in self.weights.items()
        )


class Evaluations(RunState):
    """The evaluations of one process.

    Another optimizer is the begin of another training: earlier evaluations are forgotten.

    Attributes:
        all: in order.
        is_over: whether training has gone on since the last one.
        has_trained: whether an optimizer has stepped.
        is_restored: whether other weights were loaded since the last update.
    """

    def __init__(self) -> None:
        self.all: list[Evaluation] = []
        self.is_over = True
        self.has_trained = False
        self.is_restored = False

    def observe(self, event: Event) -> None:
        if isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, OptimizerEvent):
            if event.change == "created":
                self.all, self.is_over, self.has_trained = [], True, False
        elif isinstance(event, CheckpointEvent):
            self.is_restored |= event.op == "load_state_dict" and bool(event.values)
        elif self.has_trained and (found := observed(event, EvalWeights)) is not None:
            now = self._now(event)
            if now is not None:
                known = {name: text for name, text in found.values.items() if text is not None}
                now.weights.update(known)

    def _call(self, event: CallEvent) -> None:
        if (event.family or event.api) == Families.OPTIMIZER_STEP:
            self.is_over = self.has_trained = True
            self.is_restored = False
        elif (
            event.api in LOSSES
            and self.has_trained
            and event.stage == EVAL_STAGE
            and not event.grad_enabled
        ):
            value = tensor_summary(event.result)
            now = self._now(event)
            if now is not None and value is not None and value.value is not None:
                now.first = now.first or event
                now.total += float(value.value)
                now.count += 1

    def _now(self, event: Event) -> Evaluation | None:
        """The evaluation that an event belongs to; None if other weights were loaded for it."""
        if self.is_restored or event.step is None:
            return None
        if self.is_over or not self.all:
            self.is_over = False
            if len(self.all) < _MOST:
                self.all.append(Evaluation(event.step))
        return self.all[-1]


class KeptStates(RunState):
    """The evaluated states that one process restores at its end, or saves as the best ones.

    Attributes:
        evaluations: all that it has made.
    """

    def __init__(self) -> None:
        self.evaluations = Evaluations()
        self._restored: tuple[CheckpointEvent, Evaluation] | None = None
        self._saved: dict[str, tuple[CheckpointEvent, Evaluation]] = {}

    def observe(self, event: Event) -> None:
        self.evaluations.observe(event)
        if isinstance(event, CallEvent):
            if (event.family or event.api) == Families.OPTIMIZER_STEP:
                self._restored = None
        elif isinstance(event, CheckpointEvent):
            if event.op == "load_state_dict" and event.values:
                found = [one for one in self.evaluations.all if one.is_of(event.values)]
                self._restored = (event, found[0]) if found else None
            elif (
                event.op == "save"
                and event.path is not None
                and _BEST.search(event.path.replace("\\", "/").rpartition("/")[2])
            ):
                # A file is written right after an evaluation, whose weights it holds
                evaluations = self.evaluations
                self._saved.pop(event.path, None)
                if evaluations.all and not (evaluations.is_over or evaluations.is_restored):
                    self._saved[event.path] = event, evaluations.all[-1]

    def kept(self) -> Sequence[tuple[CheckpointEvent, Evaluation]]:
        """The states that are kept now: the restored one, then each saved one."""
        restored = [] if self._restored is None else [self._restored]
        return [*restored, *self._saved.values()]
