"""Only the training loader is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import is_tensor

_ENOUGH = 2  # evaluated batches


class EvaluatedOnTrainingData(BuiltInRule, code="TC508", severity="info"):
    """evaluated-on-training-data: evaluation uses the training loader.

    What it checks:
        If batches are evaluated without gradients, some of them come from a loader that is not used
        for training.

    Why it matters:
        A metric on training data rises with memorization and is no evidence for other data.

    Fires on:
        - A run that evaluates batches, all of them from its training loader.

    Stays quiet on:
        - A second loader for evaluation, whatever else is evaluated.
        - Runs without evaluation.
        - A teacher or target network that sees the training batch first.
        - Tensors that are evaluated without a loader.

    Fix:
        Evaluate on a loader over held-out data.

    Source:
        https://scikit-learn.org/stable/common_pitfalls.html
    """

    title = "Evaluation reads {variables}, which training also reads"
    likely_cause = "The evaluation loop iterates over {variables}, the training loader."
    fix = "Evaluate on a loader over held-out data."
    needs = BATCHES | Needs(calls=frozenset({Families.MODULE}))
    _batch: BatchEvent | None = None
    _is_evaluated = False
    _is_trained = False
    _trained: set[str] = fresh(set)
    _evaluated: dict[str, list[BatchEvent]] = fresh(dict)
    _has_gap = False

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, BatchEvent):
            self._close()
            self._batch = event
        elif isinstance(event, StepEvent):
            self._has_gap |= not event.recorded
        elif isinstance(event, CallEvent):
            if (event.family or event.api) == Families.BACKWARD or _is_forward(event):
                self._is_trained = True
            elif event.root and event.training is False:
                self._is_evaluated = True
        return []

    def finish(self) -> list[Violation]:
        self._close()
        if self._has_gap or not self._evaluated or not self._evaluated.keys() <= self._trained:
            return []
        return [
            self._violation(batches[0])
            for batches in self._evaluated.values()
            if len(batches) >= _ENOUGH
        ]

    def _close(self) -> None:
        """Classify the finished batch as trained or evaluated.

        A batch that is evaluated and then followed by an update is the last of an evaluation: the
        batch to train on was fetched before.
        """
        batch = self._batch
        if batch is not None and self._is_trained:
            if not self._is_evaluated:
                self._trained.add(batch.loader)
        elif batch is not None and self._is_evaluated:
            self.triggered += 1
            batches = self._evaluated.setdefault(batch.loader, [])
            if len(batches) < _ENOUGH:
                batches.append(batch)
        self._batch, self._is_trained, self._is_evaluated = None, False, False

    def _violation(self, batch: BatchEvent) -> Violation:
        return self.violation(
            batch,
            stage="eval",
            subject=Subject(api=DATA_LOADER, variable=batch.loader),
            symptom=Symptom.ADVICE,
            message=f"all evaluated batches come from {batch.loader}, which is used for training",
            expected="another loader for evaluation",
            observed=f"batches of {batch.loader} are used for training and evaluation",
        )


def _is_forward(event: CallEvent) -> bool:
    """Whether a model ran with gradients on; torchvision's transform modules do not count."""
    if not (event.root and event.grad_enabled):
        return False
    flags = list(_flags(event.result))
    return not flags or any(flags)


def _flags(result: Any) -> Iterator[bool]:
    """For each tensor in a result, whether it requires grad."""
    if is_tensor(result):
        yield bool(result.get("requires_grad"))
    elif isinstance(result, list):
        yield from (flag for item in result for flag in _flags(item))
    elif isinstance(result, dict) and isinstance(result.get("dict"), dict):
        yield from (flag for item in result["dict"].values() for flag in _flags(item))
