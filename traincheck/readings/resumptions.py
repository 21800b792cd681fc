"""Runs that resume from a checkpoint.

`brings_back` decides whether a load may continue earlier training. `Resumptions` follows resumed
epochs, and their repeated samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from traincheck.schema.events import BatchEvent, CallEvent, CheckpointEvent, Event, StepEvent
from traincheck.schema.torch_api import Families

_MOST = 1 << 20  # indices of an epoch that are remembered
_DATA = frozenset({"torch.Tensor", "builtins.list", "builtins.tuple", "numpy.ndarray"})
_SKIPPING = "Skip"  # in the name of a sampler that skips the first batches


def brings_back(event: CheckpointEvent) -> bool:
    """Whether a load may bring values from earlier training into this one.

    A load that changes nothing does not: Accelerate loads the state of each optimizer that it
    prepares into the same optimizer. A file that contains a tensor or a list is data.
    """
    if not event.op.startswith("load"):
        return False
    if event.op == "load":
        return event.target not in _DATA
    return event.entries != 0 if event.changed is None else event.changed > 0


class Resumed(NamedTuple):
    """A batch of a resumed epoch.

    Attributes:
        load: the load that resumed it.
        done: number of batches of the epoch before the resume.
        known: number of known samples in this batch.
        again: number of them that were trained on before.
    """

    batch: BatchEvent
    load: CheckpointEvent
    done: int
    known: int
    again: int


@dataclass(slots=True)
class _Epoch:
    """An epoch of one loader in one process. last: its last batch, trained on or not yet."""

    loader: str
    number: int
    sampler: str | None
    trained: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    batches: int = 0  # that were trained on
    left_out: int = 0
    last: BatchEvent | None = None
    repeats: bool = False  # an index was drawn twice: sampling with replacement

    def take(self) -> BatchEvent | None:
        """A backward came: the last batch is used for training."""
        batch, self.last = self.last, None
        if batch is not None:
            self.repeats |= not self.trained.isdisjoint(batch.indices)
            if len(self.trained) < _MOST:
                self.trained.update(batch.indices)
            self.batches += 1
        return batch

    def goes_on(self, before: _Epoch) -> bool:
        """Whether it skips as many batches as were done."""
        if _SKIPPING in str(self.sampler):
            return True
        return self.sampler == before.sampler and self.left_out == before.batches

    def done_again(self, before: _Epoch, batch: BatchEvent) -> int:
        """Number of samples of a batch that were trained on before."""
        if self.skipped == before.trained:  # padding repeats the first samples at the end
            return 0
        return len(before.trained.intersection(batch.indices))


@dataclass(slots=True)
class _Course:
    """One process. resumed: the interrupted epoch, while it continues."""

    epoch: _Epoch | None = None
    resumed: _Epoch | None = None
    load: CheckpointEvent | None = None


class Resumptions:
    """Follows epochs, and their progress when a file was saved."""

    def __init__(self) -> None:
        self._courses: dict[tuple[int, str], _Course] = {}
        self._saved: dict[str, _Epoch] = {}  # path -> the epoch in which it was saved

    def observe(self, event: Event) -> Iterator[Resumed]:
        """Enter an event; yields the resumed batches that it shows."""
        process = (event.rank, event.stream.partition("-")[0])
        course = self._courses.setdefault(process, _Course())
        if isinstance(event, BatchEvent):
            if event.stage == "train" and event.indices:
                epoch = course.epoch
                if epoch is None or (epoch.loader, epoch.number) != (event.loader, event.epoch):
                    if epoch is not None and epoch.batches:
                        course.resumed = None  # the epoch after the resume has ended
                    epoch = course.epoch = _Epoch(event.loader, event.epoch, event.sampler)
                elif epoch.last is not None and not epoch.batches:
                    epoch.skipped.update(epoch.last.indices)
                    epoch.left_out += 1
                epoch.last = event
        elif isinstance(event, CallEvent):
            if (event.family or event.api) == Families.BACKWARD:
                yield from _trained(course)
        elif isinstance(event, CheckpointEvent):
            if event.path is not None:
                self._file(course, event, event.path)
        elif isinstance(event, StepEvent) and not event.recorded:
            course.epoch = course.resumed = None

    def _file(self, course: _Course, event: CheckpointEvent, path: str) -> None:
        if event.op == "save":
            self._saved.pop(path, None)
            done = course.epoch
            if done is not None and done.batches:
                trained = set(done.trained)
                self._saved[path] = _Epoch(
                    done.loader, done.number, done.sampler, trained, batches=done.batches
                )
        elif event.op == "load" and path in self._saved and _has_optimizer(event):
            course.resumed, course.load, course.epoch = self._saved[path], event, None


def _has_optimizer(load: CheckpointEvent) -> bool:
    kinds = {part.get("kind") for part in load.parts.values() if isinstance(part, Mapping)}
    return "optimizer" in kinds


def _trained(course: _Course) -> Iterator[Resumed]:
    epoch, before = course.epoch, course.resumed
    batch = None if epoch is None else epoch.take()
    if epoch is None or batch is None or before is None or course.load is None:
        return
    if epoch.repeats or not epoch.goes_on(before):
        course.resumed = None
    else:
        again = epoch.done_again(before, batch)
        yield Resumed(batch, course.load, before.batches, len(batch.indices), again)
