"""All readings of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.facts.losses import LOSSES
from traincheck.relations.readings.first_updates import FirstUpdates
from traincheck.relations.readings.gradient_sizes import GradientSizes, UnitActivity
from traincheck.relations.readings.loss_inputs import (
    IgnoredLabels,
    class_counts,
    extremes,
    label_shift,
    statistic,
)
from traincheck.relations.readings.loss_scale import LossScale
from traincheck.relations.readings.padding import Padding
from traincheck.relations.readings.reading import (
    CLIPPED_NORM,
    GENERATED,
    HIDDEN,
    LOSS,
    NON_FINITE,
    SCALED_LOSS,
    ReadingKey,
    ScalarReading,
)
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import ATTENTION, SOFTMAXES, Families
from traincheck.schema.values import number

_TOKENS_NDIM = 2
_SECOND = 2


def _hidden(event: CallEvent) -> Sequence[ScalarReading]:
    """The share of later positions that attention leaves out, where it was recorded."""
    value = statistic(event.result, "hidden")
    return () if value is None else (ScalarReading(ReadingKey(HIDDEN, event.api), value, event),)


def _finite(event: CallEvent, name: str) -> Sequence[ScalarReading]:
    """Whether the loss passed to backward() is a number; nothing if that is not known."""
    given = event.args.get("tensors")
    value = given.get("value") if isinstance(given, Mapping) else None
    if value is None:
        return ()
    return (ScalarReading(ReadingKey(NON_FINITE, name=name), float(isinstance(value, str)), event),)


def _batch(event: BatchEvent) -> Sequence[ScalarReading]:
    """Whether each part of a batch is finite, where numbers of them are taken."""
    return [
        ScalarReading(
            ReadingKey(NON_FINITE, event.loader, path), float(leaf["stats"]["nonfinite"]), event
        )
        for path, leaf in event.leaves.items()
        if isinstance(leaf, Mapping) and "nonfinite" in (leaf.get("stats") or {})
    ]


@dataclass(slots=True)
class GeneratedTokens:
    """How many tokens were added to a sequence, at each call of the model that adds one."""

    _lengths: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # rows, length, calls

    def call(self, event: CallEvent) -> Sequence[ScalarReading]:
        """A model was called from outside."""
        module = event.module or event.api
        ids = event.args.get("0", event.args.get("input_ids"))
        shape: Sequence[int] = ids.get("shape", ()) if isinstance(ids, Mapping) else ()
        if event.grad_enabled or len(shape) != _TOKENS_NDIM or ids["dtype"] != "int64":
            self._lengths.pop(module, None)
            return ()
        rows, length = shape
        known_rows, known_length, calls = self._lengths.get(module, (-1, -1, 0))
        # With a cache only the last token is given.
        grows = known_rows == rows and length in (known_length + 1, 1)
        calls = calls + 1 if grows else 1
        self._lengths[module] = (rows, length, calls)
        key = ReadingKey(GENERATED, event.api, module)
        return (ScalarReading(key, calls, event, begins=calls == _SECOND),) if grows else ()


class ScalarReadings:
    """Passes each event to the readings that it concerns."""

    def __init__(self) -> None:
        self._scale = LossScale()
        self._generated = GeneratedTokens()
        self._gradients = GradientSizes()
        self._activity = UnitActivity()
        self._padding = Padding()
        self._moves = FirstUpdates()
        self._left_out = IgnoredLabels()
        self._has_scaled = False  # the loss of the backward that comes

    def observe(self, event: Event) -> Sequence[ScalarReading]:
        """The numbers that an event completes."""
        if isinstance(event, StateEvent):
            if event.role == "gradient":
                self._gradients.state(event)
            elif event.role == "parameter":
                self._moves.state(event)
        elif isinstance(event, CallEvent):
            return self._call(event)
        elif isinstance(event, StepEvent):
            self._activity.step()
            gradients = self._gradients.step(event)
            return (*self._scale.step(event), *gradients, *self._moves.step(event))
        elif isinstance(event, BatchEvent):
            self._left_out.batch(event)
            return (*_batch(event), *self._padding.batch(event))
        elif isinstance(event, OptimizerEvent):
            self._moves.optimizer(event)
        elif isinstance(event, CheckpointEvent):
            self._moves.checkpoint(event)
        elif isinstance(event, MarkEvent) and event.text == Marks.PROCESS_GROUP:
            self._scale.grouped(event)
        return ()

    def _call(self, event: CallEvent) -> Sequence[ScalarReading]:
        api = event.api
        self._activity.call(event)
        if event.root:
            return (*self._generated.call(event), *self._activity.root(event))
        if event.exception is not None:
            return ()
        if api in LOSSES and event.grad_enabled:
            self._scale.loss(event)
            left_out = self._left_out.loss(event)
            return (*class_counts(event), *extremes(event), *label_shift(event), *left_out)
        if api == Families.BACKWARD:
            self._scale.backward(event)
            self._gradients.loss(event)
            has_scaled, self._has_scaled = self._has_scaled, False
            return _finite(event, SCALED_LOSS if has_scaled else LOSS)
        if api in SOFTMAXES:
            return _hidden(event)
        if api == ATTENTION:
            return self._padding.call(event)
        if api == Families.SCALE:
            self._has_scaled = True
            self._scale.scaled()
            self._gradients.scaled()
        elif event.family == Families.OPTIMIZER_STEP:
            self._scale.updated(event)
        elif Families.CLIP_NORM in (api, event.family):
            value = number(event.result)
            if value is not None:
                return (ScalarReading(ReadingKey(CLIPPED_NORM, Families.CLIP_NORM), value, event),)
        return ()
