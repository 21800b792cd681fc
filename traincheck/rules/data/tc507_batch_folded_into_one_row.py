"""Collation puts all samples of a batch into one row."""

from __future__ import annotations

from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER
from traincheck.schema.events import BatchEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.values import tensor_summary

_MIN_BATCH = 3


class BatchFoldedIntoOneRow(BuiltInRule, code="TC507"):
    """batch-folded-into-one-row: several samples were drawn, but the batch has one row.

    What it checks:
        If a loader draws several samples for a batch, collation does not put all of them into one
        row. In such a batch, one tensor holds all samples and another only the first.

    Why it matters:
        The model sees one sample instead of many. The others are lost or treated as parts of it.

    Fires on:
        - A batch in which one tensor has shape (1, samples drawn, ...) and another has shape (1,
          other size).

    Stays quiet on:
        - Samples that are packed into one row of tokens.
        - Batches of one or two samples.
        - Any batch with more than one row.

    Fix:
        Let collate_fn return one row per sample: a list of samples, not a list inside a list.

    Source:
        https://github.com/huggingface/transformers/issues/34204
    """

    title = "Collation folds all samples of {variables} into one row"
    likely_cause = (
        "collate_fn of {variables} may nest the samples of a batch one level too deep: {observed}."
    )
    fix = "Let collate_fn return one row per sample for each tensor."
    needs = BATCHES

    def observe(self, event: Event) -> list[Violation]:
        if not isinstance(event, BatchEvent) or event.drawn < _MIN_BATCH:
            return []
        self.triggered += 1
        shapes = {
            path: summary.shape
            for path, leaf in event.leaves.items()
            if (summary := tensor_summary(leaf)) is not None and summary.shape
        }
        folded = [p for p, shape in shapes.items() if shape[:2] == (1, event.drawn)]
        others = [p for p in shapes if p not in folded]
        is_one_row = all(shape[0] == 1 for shape in shapes.values())
        if not (folded and others and is_one_row) or event.loader in self.reported:
            return []
        self.reported.add(event.loader)
        return [self._violation(event, folded[0], others[0], shapes)]

    def _violation(
        self, event: BatchEvent, folded: str, other: str, shapes: dict[str, tuple[int, ...]]
    ) -> Violation:
        observed = f"{folded} has shape {list(shapes[folded])}, {other} {list(shapes[other])}"
        return self.violation(
            event,
            subject=Subject(api=DATA_LOADER, variable=event.loader),
            symptom=Symptom.LOSS_INPUT,
            message=(
                f"{event.loader} draws {event.drawn} samples, but its batch has one row; {observed}"
            ),
            expected=f"{event.drawn} rows in each tensor",
            observed=observed,
        )
