"""A resumed run counts its epochs or steps from the beginning. Needs proof of a resume."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from traincheck.rules.base.event_rule import EventRule
from traincheck.rules.checkpoints.resume import RESUME, Resume
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, CheckpointEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_DISTRIBUTED = "torch.utils.data.distributed.DistributedSampler"
_EPOCH = re.compile(r"(start_|last_|cur_|current_|resume_)?epoch(_num|_idx|_index)?")
_STEP = re.compile(
    r"(global_|train_|start_|last_|current_)?(step|iteration)|(global_)?(iter|iter_num)|num_updates"
)


class StepCountResetOnResume(EventRule, code="TC612", aliases=("count-begins-anew",)):
    """step-count-reset-on-resume: a resumed run counts epochs or steps from the beginning.

    What it checks:
        When model and optimizer were loaded from a file that also holds the number of an epoch or
        step, training goes on from there: the next file that it saves holds no lower number, and
        the sampler is not told an epoch from long before.

    Why it matters:
        What goes by the number begins anew at each restart: warm-up, decay and curricula, the order
        of the samples, the names of checkpoints, which overwrite earlier ones, and the end.

    Fires on:
        A loop over range(epochs) after a resume; a step count that starts at 0;
        sampler.set_epoch(0) in the first epoch after a resume at a later one.

    Stays quiet on:
        Fine-tuning that loads the model alone; an optimizer other than the loaded one; files
        without such a number; an epoch that is begun again; counts within an epoch beside the
        number of the epoch; earlier checkpoints that are read again in the same run.

    Fix:
        Begin the loop where the file says: for epoch in range(checkpoint["epoch"] + 1, epochs).

    Source:
        https://github.com/atomistic-machine-learning/schnetpack/issues/102,
        https://github.com/mlbench/mlbench-old/issues/50
    """

    title = "A resumed run counts from the beginning"
    likely_cause = (
        "The checkpoint holds a number that training does not go on from: the loop{where} "
        "starts again."
    )
    fix = "Begin the loop with the number of the checkpoint that was loaded."
    needs = RESUME | Needs(calls=frozenset({Families.BACKWARD}), kinds=frozenset({"batch"}))

    def __init__(self) -> None:
        super().__init__()
        self._resume = Resume()
        self._owners: set[str | None] = set()  # optimizers that were loaded
        self._file: CheckpointEvent | None = None  # from which training is resumed, until judged
        self._first: CallEvent | None = None  # step after the resume
        self._told: BatchEvent | None = None  # first batch after it from a sampler with epochs
        self._steps = self._backwards = 0  # since the resume

    def judge(self, event: Event) -> list[Violation]:
        self._resume.observe(event)
        if isinstance(event, CheckpointEvent):
            return self._checkpoint(event)
        if self._file is None:
            return []
        if isinstance(event, BatchEvent):
            if self._first is None and self._told is None and _shuffles_by_epoch(event):
                self._told = event
        elif isinstance(event, CallEvent):
            family = event.family or event.api
            self._backwards += family == Families.BACKWARD
            if family == Families.OPTIMIZER_STEP:
                return self._step(event, self._file)
        return []

    def _checkpoint(self, event: CheckpointEvent) -> list[Violation]:
        resume = self._resume
        if event.op == "load":
            self._file = None
            self._owners.clear()
        elif event.op == "load_state_dict":
            if event.owner is not None and resume.optimizer is event:
                self._owners.add(event.owner)
            file = resume.file
            if file is not None and file.numbers and resume.model and resume.optimizer:
                self._file, self._first, self._told = file, None, None
                self._steps = self._backwards = 0
        elif self._file is not None and self._first is not None:
            return self._saved(event, self._file, self._first)
        return []

    def _step(self, event: CallEvent, file: CheckpointEvent) -> list[Violation]:
        if event.owner not in self._owners:
            self._file = None  # another training
            return []
        self._steps += 1
        if self._first is not None:
            return []
        self._first = event
        saved, told = _number(file.numbers, _EPOCH), self._told
        if saved is None or told is None or told.sampler_epoch is None:
            return []
        self.triggered += 1
        if told.sampler_epoch >= saved[1] - 1:  # counts may begin at 0 or 1
            return []
        self._file = None
        said = f"the sampler of {told.loader} is told epoch {told.sampler_epoch}"
        return [self._violation(event, file, saved, said, told)]

    def _saved(
        self, event: CheckpointEvent, file: CheckpointEvent, first: CallEvent
    ) -> list[Violation]:
        """A file that is saved after a step: it tells where the loop is."""
        for names in (_EPOCH, _STEP):
            before = _number(file.numbers, names)
            if before is None or before[0] not in event.numbers:
                continue
            self.triggered += 1
            self._file = None
            key, now = before[0], event.numbers[before[0]]
            if now >= before[1] or (names is _STEP and not self._counts(now)):
                return []
            said = f'the next file that is saved holds "{key}": {now}'
            return [self._violation(first, file, before, said, event)]
        return []

    def _counts(self, number: int) -> bool:
        """Whether a number of steps was counted from the resume on, and not within an epoch."""
        return any(abs(number - since) <= 1 for since in (self._steps, self._backwards))

    def _violation(
        self,
        first: CallEvent,
        file: CheckpointEvent,
        saved: tuple[str, int],
        said: str,
        proof: Event,
    ) -> Violation:
        key, number = saved
        return Violation(
            check_id=self.code,
            step=first.step,
            rank=first.rank,
            stage="train",
            subject=Subject(api="torch.load"),
            symptom=Symptom.NOT_RESTORED,
            message=(
                f'{file.path} holds "{key}": {number}, and model and optimizer were loaded '
                "from it, "
                f"but training counts from the beginning: {said}"
            ),
            expected=f"training goes on from {key} {number}",
            observed=said,
            evidence=(file, first, proof),
        )


def _number(numbers: Mapping[str, int], names: re.Pattern[str]) -> tuple[str, int] | None:
    """The first number with such a name, and the name."""
    found = ((key, value) for key, value in numbers.items() if names.fullmatch(key.lower()))
    return next(found, None)


def _shuffles_by_epoch(event: BatchEvent) -> bool:
    """Whether the order of a loader depends on the epoch that its sampler is told."""
    if event.sampler_epoch is None or event.sampler != _DISTRIBUTED:
        return False
    return any(later < former for former, later in pairwise(event.indices))
