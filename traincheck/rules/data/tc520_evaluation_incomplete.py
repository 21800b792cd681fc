"""The last evaluation of a run leaves out rows of its data set."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.places import short
from traincheck.schema.torch_api import LOSS_MODULES, Families


@dataclass(slots=True)
class _Pass:
    """One pass over a loader. forward: the first call of a trained model that evaluates it."""

    batch: BatchEvent
    forward: CallEvent | None = None
    drawn: int = 0

    @property
    def data(self) -> str:
        return self.batch.dataset or self.batch.loader

    @property
    def is_short(self) -> bool:
        """Whether the loader was read to its end, and dropped the rows behind it."""
        batch = self.batch
        is_read = 0 < self.drawn == batch.dataset_size - batch.dropped
        return bool(batch.dropped and not batch.replicas and is_read)


class EvaluationIncomplete(BuiltInRule, code="TC520"):
    """evaluation-incomplete: the final evaluation leaves out the last rows of its data set.

    What it checks:
        The loader that is evaluated last, after the last update, does not drop its last batch.

    Why it matters:
        The reported metric misses rows, and depends on the batch size. Without shuffling it always
        misses the same ones, such as the most recent part of a series.

    Fires on:
        - DataLoader(test_set, batch_size=128, drop_last=True), read to its end in evaluation mode.

    Stays quiet on:
        - An evaluation that is ended early.
        - Validation during training, and the training data.
        - Each evaluation but the last one.
        - Fewer than 1 % of the rows.
        - A DistributedSampler, and samplers and batch samplers that are not of torch.

    Fix:
        Build the loader of the test with drop_last=False.

    Source:
        https://github.com/lss-1138/SparseTSF/issues/3, https://arxiv.org/abs/2403.20150

    Options:
        share: of the rows; fewer that are left out are not reported.
    """

    title = "The final evaluation leaves out the last batch of {variables}"
    likely_cause = "drop_last=True was passed to {variables}, as for training."
    fix = "Build the loader of the test with drop_last=False."
    needs = BATCHES | Needs(calls=frozenset({Families.MODULE, Families.OPTIMIZER_STEP}))
    share: float = 0.01
    _pass: _Pass | None = None
    _called: set[str] = fresh(set)
    _models: set[str] = fresh(set)
    _other: set[str] = fresh(set)  # data that is trained on, or evaluated before an update
    _last: dict[str, _Pass] = fresh(dict)  # by data, evaluated since the last update
    _has_gap = False

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, BatchEvent):
            if self._pass is None or not _is_next(self._pass.batch, event):
                self._pass = _Pass(event)
            self._pass.drawn += event.drawn
        elif isinstance(event, StepEvent):
            self._has_gap |= not event.recorded
        elif isinstance(event, CallEvent):
            family = event.family or event.api
            if family == Families.BACKWARD:
                self._models |= self._called
                self._called.clear()
                if self._pass is not None and self._pass.forward is None:
                    self._other.add(self._pass.data)
            elif family == Families.OPTIMIZER_STEP:
                self._other |= self._last.keys()
                self._last.clear()
            elif event.root and event.module and not event.api.startswith(LOSS_MODULES):
                self._forward(event)
        return []

    def _forward(self, event: CallEvent) -> None:
        if event.training:
            if event.grad_enabled:
                self._called.add(event.module or "")
        elif self._pass is not None and event.module in self._models:
            self._pass.forward = self._pass.forward or event
            before = self._last.pop(self._pass.data, self._pass)
            self._last[self._pass.data] = before if before.is_short else self._pass

    def finish(self) -> list[Violation]:
        tests = [one for data, one in self._last.items() if data not in self._other]
        if not tests or self._has_gap:
            return []
        self.triggered += 1
        found = tests[-1]
        batch, forward = found.batch, found.forward
        if not found.is_short or forward is None:
            return []
        if batch.dropped < self.share * batch.dataset_size:
            return []
        line = f" at {short(forward.where)}" if forward.where else ""
        return self.found(
            batch,
            stage=EVAL_STAGE,
            subject=Subject(api=DATA_LOADER, variable=batch.loader),
            symptom=Symptom.BATCH_CONTENT,
            message=f"the final evaluation{line} read {found.drawn} of {batch.dataset_size} rows: "
            f"{batch.loader} drops the last batch",
            expected="an evaluation of all rows",
            observed=f"the last {batch.dropped} of {batch.dataset_size} drawn rows are left out",
            evidence=(batch, forward),
        )


def _is_next(before: BatchEvent, event: BatchEvent) -> bool:
    return (before.loader, before.epoch) == (event.loader, event.epoch)
