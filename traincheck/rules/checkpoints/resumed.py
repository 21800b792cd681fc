"""Resumed runs that do not continue: another order of the data, a step count of zero."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from traincheck.readings.provider import RunStates
from traincheck.readings.resumptions import Resumptions
from traincheck.rules.base.rule import BuiltInRule, EventRule, fresh
from traincheck.rules.checkpoints.resume import RESUME, Resume
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, CheckpointEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import counted


class DataOrderDiffersAfterResume(
    BuiltInRule, code="TC607", severity="error", aliases=("epoch-resumed-in-another-order",)
):
    """data-order-differs-after-resume: a resumed epoch trains samples again.

    What it checks:
        A resume from a file saved within an epoch may skip the first batches of the new loader. The
        skipped batches are those that were trained on before.

    Why it matters:
        The order is drawn again, so other batches are skipped. In this epoch some samples come
        twice and others never. After many restarts the model has seen a biased part of the data.

    Fires on:
        - A shuffling loader whose generator is not restored, and a loop that skips as many batches
          as were done.
        - accelerate.skip_first_batches with a sampler that draws another order.

    Stays quiet on:
        - Resumes at the start of an epoch.
        - Epochs that are restarted.
        - Orders that are restored.
        - Samplers that draw with replacement.

    Fix:
        Save the state of the sampler's generator at the start of the epoch and restore it, or seed
        it with the epoch.

    Source:
        https://github.com/huggingface/accelerate/pull/4233,
        https://github.com/huggingface/transformers/pull/40691
    """

    title = "A resumed epoch skips batches of another order"
    likely_cause = (
        "The generator of the sampler may not be restored, so that the order of the epoch was "
        "drawn again before its first batches were skipped."
    )
    fix = (
        "Restore the sampler's generator to its state at the start of the epoch, or seed it with "
        "the epoch."
    )
    needs = Needs(
        calls=frozenset({Families.BACKWARD}), kinds=frozenset({"batch", "checkpoint", "step"})
    )
    scope = "run"
    _resumptions = fresh(Resumptions)
    _reported: set[tuple[int, str, int]] = fresh(set)  # rank, stream and number of a load

    def observe(self, event: Event) -> list[Violation]:
        violations: list[Violation] = []
        for one in self._resumptions.observe(event):
            self.triggered += 1
            load = (one.load.rank, one.load.stream, one.load.seq)
            if not one.again or load in self._reported:
                continue
            self._reported.add(load)
            samples = counted(one.again, "sample")
            violations += self.found(
                one.batch,
                stage="train",
                subject=Subject(variable=one.batch.loader),
                symptom=Symptom.REPEATED_DATA,
                message=f"{one.load.path} was saved after {one.done} batches of an epoch; after "
                f"the resume, {one.batch.loader} returns samples of those batches again",
                expected="the skipped batches are those that were trained on before",
                observed=f"{samples} of this batch were trained on before in the same epoch",
                evidence=(one.batch, one.load),
            )
        return violations


_DISTRIBUTED = "torch.utils.data.distributed.DistributedSampler"
_EPOCH = re.compile(r"(start_|last_|cur_|current_|resume_)?epoch(_num|_idx|_index)?")
_STEP = re.compile(
    r"(global_|train_|start_|last_|current_)?(step|iteration)|(global_)?(iter|iter_num)|num_updates"
)


class StepCountResetOnResume(EventRule, code="TC612", aliases=("count-begins-anew",)):
    """step-count-reset-on-resume: a resumed run counts epochs or steps from the start.

    What it checks:
        If model and optimizer are loaded from a file with the number of an epoch or step, training
        continues from there. The next saved file holds no lower number, and the sampler does not
        receive a much earlier epoch.

    Why it matters:
        Everything that depends on the number restarts with each resume: warm-up, decay and
        curricula, the order of the samples, and the end of training. New checkpoints overwrite
        earlier ones with the same name.

    Fires on:
        - A loop over range(epochs) after a resume.
        - A step count that starts at 0.
        - sampler.set_epoch(0) in the first epoch after a resume at a later one.

    Stays quiet on:
        - Fine-tuning that loads only the model.
        - An optimizer other than the loaded one.
        - Files without such a number.
        - An epoch that is restarted.
        - Counts within an epoch beside the number of the epoch.
        - Earlier checkpoints that are read again in the same run.

    Fix:
        Start the loop at the saved number: for epoch in range(checkpoint["epoch"] + 1, epochs).

    Source:
        https://github.com/atomistic-machine-learning/schnetpack/issues/102,
        https://github.com/mlbench/mlbench-old/issues/50
    """

    title = "A resumed run counts from the start"
    likely_cause = (
        "The checkpoint holds a number from which training does not continue: the loop{where} "
        "restarts."
    )
    fix = "Start the loop at the number of the loaded checkpoint."
    needs = RESUME | Needs(calls=frozenset({Families.BACKWARD}), kinds=frozenset({"batch"}))
    uses = (Resume,)
    _owners: set[str | None] = fresh(set)  # optimizers that were loaded
    _file: CheckpointEvent | None = None  # of the resume, until it is judged
    _first: CallEvent | None = None  # step after the resume
    _sampled: BatchEvent | None = None  # first batch after it from a sampler with epochs
    _steps = _backwards = 0  # since the resume

    def bind(self, run_states: RunStates) -> None:
        self._resume = run_states.of(Resume)

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CheckpointEvent):
            resume = self._resume
            if event.op == "load":
                self._file = None
                self._owners.clear()
            elif event.op == "load_state_dict":
                if event.owner is not None and resume.optimizer is event:
                    self._owners.add(event.owner)
                file = resume.file
                if file is not None and file.numbers and resume.model and resume.optimizer:
                    self._file, self._first, self._sampled = file, None, None
                    self._steps = self._backwards = 0
            elif self._file is not None and self._first is not None:
                return self._saved(event, self._file, self._first)
            return []
        if self._file is None:
            return []
        if isinstance(event, BatchEvent):
            if self._first is None and self._sampled is None and _shuffles_by_epoch(event):
                self._sampled = event
        elif isinstance(event, CallEvent):
            family = event.family or event.api
            self._backwards += family == Families.BACKWARD
            if family == Families.OPTIMIZER_STEP:
                return self._step(event, self._file)
        return []

    def _step(self, event: CallEvent, file: CheckpointEvent) -> list[Violation]:
        if event.owner not in self._owners:
            self._file = None  # another training
            return []
        self._steps += 1
        if self._first is not None:
            return []
        self._first = event
        saved, sampled = _number(file.numbers, _EPOCH), self._sampled
        if saved is None or sampled is None or sampled.sampler_epoch is None:
            return []
        self.triggered += 1
        if sampled.sampler_epoch >= saved[1] - 1:  # counts may begin at 0 or 1
            return []
        self._file = None
        said = f"the sampler of {sampled.loader} receives epoch {sampled.sampler_epoch}"
        return [self._violation(event, file, saved, said, sampled)]

    def _saved(
        self, event: CheckpointEvent, file: CheckpointEvent, first: CallEvent
    ) -> list[Violation]:
        """Compare the numbers of a file that is saved after a step: they show the position."""
        for names in (_EPOCH, _STEP):
            before = _number(file.numbers, names)
            if before is None or before[0] not in event.numbers:
                continue
            self.triggered += 1
            self._file = None
            key, now = before[0], event.numbers[before[0]]
            # Whether a number counts steps since the resume, not within an epoch.
            if now >= before[1] or (
                names is _STEP
                and not any(abs(now - since) <= 1 for since in (self._steps, self._backwards))
            ):
                return []
            said = f'the next saved file holds "{key}": {now}'
            return [self._violation(first, file, before, said, event)]
        return []

    def _violation(
        self,
        first: CallEvent,
        file: CheckpointEvent,
        saved: tuple[str, int],
        said: str,
        proof: Event,
    ) -> Violation:
        key, number = saved
        return self.violation(
            first,
            stage="train",
            subject=Subject(api="torch.load"),
            symptom=Symptom.NOT_RESTORED,
            message=(
                f'{file.path} holds "{key}": {number}, and model and optimizer were loaded '
                "from it, "
                f"but training counts from the start: {said}"
            ),
            expected=f"training continues from {key} {number}",
            observed=said,
            evidence=(file, first, proof),
        )


def _number(numbers: Mapping[str, int], names: re.Pattern[str]) -> tuple[str, int] | None:
    """The first number with such a name, and the name."""
    found = ((key, value) for key, value in numbers.items() if names.fullmatch(key.lower()))
    return next(found, None)


def _shuffles_by_epoch(event: BatchEvent) -> bool:
    """Whether the order of a loader depends on the epoch of its sampler."""
    if event.sampler_epoch is None or event.sampler != _DISTRIBUTED:
        return False
    return any(later < former for former, later in pairwise(event.indices))
