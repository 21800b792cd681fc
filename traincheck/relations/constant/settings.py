"""All settings of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from traincheck.facts.steps import is_judged
from traincheck.relations.constant.arguments import Arguments, equal_arguments
from traincheck.relations.constant.batches import BatchUse, RowCounts, leaves_of, masked_labels
from traincheck.relations.constant.modes import Modes
from traincheck.relations.constant.optimizers import Optimizers, WritesBetweenSteps
from traincheck.relations.constant.setting import Setting
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StepEvent,
)
from traincheck.schema.torch_api import Families

_MOST_MASKED = 16  # batches may be fetched ahead


class Settings:
    """Passes each event to the settings that it concerns."""

    def __init__(self, functions: Collection[str] | None = None) -> None:
        self._arguments = Arguments(functions)
        self._modes = Modes()
        self._optimizers = Optimizers()
        self._rows = RowCounts()
        self._masked: deque[str] = deque(maxlen=_MOST_MASKED)
        self._writes = WritesBetweenSteps()
        self._batch_use = BatchUse()

    def observe(self, event: Event) -> Sequence[Setting]:
        """The settings that an event completes."""
        if isinstance(event, CallEvent):
            self._batch_use.call(event)
            if event.family != Families.MODULE:
                setting = self._arguments.call(event)
                return () if setting is None else (setting,)
            if not event.root:
                self._modes.inner(event)
                return ()
            self._rows.call(event)
            settings = (self._modes.root(event), equal_arguments(event, self._masked))
            return [setting for setting in settings if setting is not None]
        if isinstance(event, BatchEvent):
            self._batch_use.batch(event)
            self._rows.batch(event)
            self._masked.extend(masked_labels(event))
            setting = leaves_of(event)
            return () if setting is None else (setting,)
        if isinstance(event, MarkEvent):
            setting = self._writes.mark(event)
            return () if setting is None else (setting,)
        if isinstance(event, OptimizerEvent):
            self._optimizers.optimizer(event)
        elif isinstance(event, CheckpointEvent):
            self._writes.load(event)
        elif isinstance(event, StepEvent):
            self._modes.step(event)
            used = list(self._batch_use.step(event))
            if is_judged(event):
                return [*self._optimizers.step(event), *self._rows.step(event), *used]
            self._rows.skip()
        return ()
