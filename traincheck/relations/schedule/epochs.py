"""Where epochs of the training data begin, and whether schedulers are stepped there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from traincheck.relations.base import counterexample
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.torch_api import Families
from traincheck.schema.trace_terms import EVAL_STAGE

FOLLOWED = frozenset({
    Families.SCHEDULER_CREATED, Families.SCHEDULER_STEP, Families.BACKWARD, Families.OPTIMIZER_STEP
})  # fmt: skip


class EpochBoundary(NamedTuple):
    """The calls between two updates."""

    is_new_epoch: bool
    is_stepped: bool
    update: CallEvent

    @property
    def is_regular(self) -> bool:
        return self.is_new_epoch == self.is_stepped


@dataclass(slots=True)
class EpochBoundaries:
    """Follows one process.

    An epoch is an epoch of the loader whose batch the next backward uses. That may be another
    loader than before; batches of an evaluation are ignored. A run that creates no scheduler
    trains at one rate on purpose, so it has no boundaries.
    """

    _batch: BatchEvent | None = None
    _epoch: tuple[str, int] | None = None  # of the last batch that was trained on: of which loader
    _is_known: bool = False  # a backward came since the last update, and its batch is known
    _is_new: bool = False
    _is_stepped: bool = False
    _is_first: bool = True
    _has_scheduler: bool = False

    def observe(self, event: Event) -> EpochBoundary | None:
        """The boundary that ``event`` completes, if it is an update."""
        if isinstance(event, BatchEvent):
            self._batch = None if event.stage == EVAL_STAGE else event
        elif isinstance(event, StepEvent):
            if not event.recorded:
                self._is_first = True
        elif isinstance(event, CallEvent) and event.exception is None:
            return self._call(event)
        return None

    def _call(self, event: CallEvent) -> EpochBoundary | None:
        family = event.family or event.api
        if family == Families.SCHEDULER_CREATED:
            self._has_scheduler = True
        elif family == Families.SCHEDULER_STEP:
            self._has_scheduler = self._is_stepped = True
        elif family == Families.BACKWARD and self._batch is not None:
            self._is_known = True
            epoch = self._batch.loader, self._batch.epoch
            self._is_new |= self._batch.index == 0 and self._epoch not in (None, epoch)
            self._epoch = epoch
            self._batch = None
        elif family == Families.OPTIMIZER_STEP and self._is_known:
            boundary = EpochBoundary(self._is_new, self._is_stepped, event)
            is_first, self._is_first = self._is_first, False
            self._is_known = self._is_new = self._is_stepped = False
            return None if is_first or not self._has_scheduler else boundary
        return None


def misplaced_step(boundary: EpochBoundary) -> Example:
    """The counterexample of a boundary, if schedulers are stepped by epoch."""
    update = boundary.update
    return counterexample(
        update,
        Subject(api=Families.SCHEDULER_STEP),
        "a scheduler is stepped when an epoch ends, and only then",
        "an epoch began without a scheduler step"
        if boundary.is_new_epoch
        else "a scheduler was stepped within an epoch",
        Symptom.SCHEDULE,
    )
