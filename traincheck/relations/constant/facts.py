"""All facts of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from traincheck.facts.steps import is_judged
from traincheck.relations.constant.arguments import Arguments, equal_arguments
from traincheck.relations.constant.batches import Samples, Used, leaves_of, masked_labels
from traincheck.relations.constant.fact import Fact
from traincheck.relations.constant.modes import Modes
from traincheck.relations.constant.optimizers import Looks, Optimizers
from traincheck.schema.apis import (
    Families,
    Marks,
)
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StepEvent,
)

_MOST_MASKED = 16  # batches may be fetched ahead


class Facts:
    """All of them, each told of what concerns it."""

    def __init__(self, functions: Collection[str] | None = None) -> None:
        self._arguments = Arguments(functions)
        self._modes = Modes()
        self._optimizers = Optimizers()
        self._samples = Samples()
        self._masked: deque[str] = deque(maxlen=_MOST_MASKED)
        self._looks = Looks()
        self._used = Used()

    def observe(self, event: Event) -> Sequence[Fact]:
        """The facts that an event tells."""
        if isinstance(event, CallEvent):
            self._used.call(event)
            if event.family != Families.MODULE:
                fact = self._arguments.call(event)
                return () if fact is None else (fact,)
            if not event.root:
                self._modes.inner(event)
                return ()
            self._samples.call(event)
            facts = (self._modes.root(event), equal_arguments(event, self._masked))
            return [fact for fact in facts if fact is not None]
        if isinstance(event, BatchEvent):
            self._used.batch(event)
            self._samples.batch(event)
            self._masked.extend(masked_labels(event))
            fact = leaves_of(event)
            return () if fact is None else (fact,)
        if isinstance(event, MarkEvent):
            fact = self._looks.look(event) if event.text == Marks.BETWEEN_STEPS else None
            return () if fact is None else (fact,)
        if isinstance(event, OptimizerEvent):
            self._optimizers.optimizer(event)
        elif isinstance(event, CheckpointEvent):
            self._looks.load(event)
        elif isinstance(event, StepEvent):
            self._modes.step(event)
            used = list(self._used.step(event))
            if is_judged(event):
                return [*self._optimizers.step(event), *self._samples.step(event), *used]
            self._samples.skip()
        return ()
