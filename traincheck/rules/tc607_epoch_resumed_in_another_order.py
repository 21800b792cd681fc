"""TC607: a resume in the middle of an epoch skips batches of another order. Goes by indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traincheck.schema.claims import Needs
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    Families,
    StepEvent,
)
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation

_MOST = 1 << 20  # indices of an epoch that are remembered
_SKIPPING = "Skip"  # in the name of a sampler that leaves the first batches out

_Process = tuple[int, str]


class EpochResumedInAnotherOrder:
    """TC607 epoch-resumed-in-another-order: a resumed epoch trains samples again.

    What it checks:
        When training goes on from a file that was saved within an epoch, and leaves the first
        batches of the new loader out, these are the batches that were trained on before.

    Why it matters:
        The order is drawn anew, so other batches than those are left out: in this epoch some
        samples come twice and others never. After many restarts the model has seen a biased part.

    Fires on:
        A shuffling loader whose generator is not restored, and a loop that skips as many batches as
        were done; accelerate.skip_first_batches with a sampler that draws another order.

    Stays quiet on:
        Resumes at the beginning of an epoch; epochs that are begun again; orders that are restored;
        samplers that draw with replacement.

    Fix:
        Save the state of the sampler's generator at the beginning of the epoch and restore it, or
        seed it by the epoch.

    Source:
        https://github.com/huggingface/accelerate/pull/4233,
        https://github.com/huggingface/transformers/pull/40691
    """

    info = CheckInfo(
        check_id="TC607",
        kind="rule",
        code="TC607",
        severity="error",
        title="A resumed epoch skips batches of another order",
        likely_cause=(
            "The generator of the sampler is not restored, so the order of the epoch was drawn "
            "anew before its first batches were skipped."
        ),
        fix="Restore the sampler's generator as it was when the epoch began, or seed it by epoch.",
    )
    needs = Needs(
        calls=frozenset({Families.BACKWARD}), kinds=frozenset({"batch", "checkpoint", "step"})
    )
    scope = "run"

    def monitor(self) -> Epochs:
        return Epochs()


@dataclass(slots=True)
class _Epoch:
    """Of one loader in one process. last: its last batch, trained on or not yet."""

    loader: str
    number: int
    sampler: str | None
    trained: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    batches: int = 0  # that were trained on
    left_out: int = 0
    last: BatchEvent | None = None
    repeats: bool = False  # an index was drawn twice: that is how it samples


@dataclass(slots=True)
class _Course:
    """What one process does. resumed: the epoch that was broken off, while it is awaited."""

    epoch: _Epoch | None = None
    resumed: _Epoch | None = None
    load: CheckpointEvent | None = None


class Epochs:
    """Follows epochs, and what of them was done when a file was saved."""

    def __init__(self) -> None:
        self.triggered = 0
        self._courses: dict[_Process, _Course] = {}
        self._saved: dict[str, _Epoch] = {}  # path -> the epoch within which it was saved

    def observe(self, event: Event) -> list[Violation]:
        process = (event.rank, event.stream.partition("-")[0])
        course = self._courses.setdefault(process, _Course())
        if isinstance(event, BatchEvent):
            if event.stage == "train" and event.indices:
                self._batch(course, event)
        elif isinstance(event, CallEvent):
            return self._trained(course)
        elif isinstance(event, CheckpointEvent) and event.path is not None:
            self._file(course, event)
        elif isinstance(event, StepEvent) and not event.recorded:
            course.epoch = course.resumed = None
        return []

    def finish(self) -> list[Violation]:
        """Nothing: what was trained on has been judged."""
        return []

    def _file(self, course: _Course, event: CheckpointEvent) -> None:
        path = str(event.path)
        if event.op == "save":
            done = course.epoch
            if done is not None and done.batches:
                self._saved[path] = _Epoch(
                    done.loader, done.number, done.sampler, set(done.trained), batches=done.batches
                )
            else:
                self._saved.pop(path, None)
        elif event.op == "load" and path in self._saved and self._is_resume(event.parts):
            course.resumed, course.load, course.epoch = self._saved[path], event, None

    @staticmethod
    def _is_resume(parts: Mapping[str, object]) -> bool:
        kinds = {part.get("kind") for part in parts.values() if isinstance(part, Mapping)}
        return "optimizer" in kinds

    def _batch(self, course: _Course, event: BatchEvent) -> None:
        epoch = course.epoch
        if epoch is None or (epoch.loader, epoch.number) != (event.loader, event.epoch):
            if epoch is not None and epoch.batches:
                course.resumed = None  # the epoch after the resume has ended
            epoch = course.epoch = _Epoch(event.loader, event.epoch, event.sampler)
        elif epoch.last is not None and not epoch.batches:
            epoch.skipped.update(epoch.last.indices)
            epoch.left_out += 1
        epoch.last = event

    def _trained(self, course: _Course) -> list[Violation]:
        """A backward pass: the last batch is one that is trained on."""
        epoch = course.epoch
        if epoch is None or epoch.last is None:
            return []
        batch, epoch.last = epoch.last, None
        epoch.repeats |= not epoch.trained.isdisjoint(batch.indices)
        if len(epoch.trained) < _MOST:
            epoch.trained.update(batch.indices)
        epoch.batches += 1
        before = course.resumed
        if before is None or course.load is None or epoch.repeats:
            return []
        if epoch.sampler != before.sampler and _SKIPPING not in str(epoch.sampler):
            return []
        is_skipping = _SKIPPING in str(epoch.sampler)
        if not is_skipping and epoch.left_out != before.batches:
            course.resumed = None
            return []
        self.triggered += 1
        if not is_skipping and epoch.skipped == before.trained:
            course.resumed = None
            return []
        again = before.trained.intersection(batch.indices)
        if not again:
            return []
        course.resumed = None
        return [_violation(batch, course.load, before, len(again))]


def _violation(batch: BatchEvent, load: CheckpointEvent, before: _Epoch, again: int) -> Violation:
    samples = "1 sample" if again == 1 else f"{again} samples"
    return Violation(
        check_id="TC607",
        step=batch.step,
        rank=batch.rank,
        stage="train",
        subject=Subject(variable=batch.loader),
        symptom=Symptom.REPEATED_DATA,
        message=(
            f"{load.path} was saved after {before.batches} batches of an epoch; after the resume "
            f"{batch.loader} gives samples of those batches again"
        ),
        expected="the batches that are skipped are those that were trained on before",
        observed=f"{samples} of this batch were trained on before in the same epoch",
        evidence=(batch, load),
    )
