"""Reading a sample changes the dataset."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.base.rule import EventRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.data import DatasetReads
from traincheck.schema.observations.reading import observed

_LEAST = 2  # samples


class DatasetWrittenWhenRead(EventRule, code="TC073"):
    """dataset-written-when-read: __getitem__ changes the stored data in place.

    What it checks:
        Without random numbers, a sample has the same values in each epoch, and fetching it does not
        change the stored item that it is made from.

    Why it matters:
        Each epoch trains on samples that were normalized, scaled or shifted once more. The input
        drifts away from the evaluation data, and the loss still falls.

    Fires on:
        - An in-place operation on self.images[i], which is a view.
        - An in-place change of an array, list or dict that the dataset stores.

    Stays quiet on:
        - Samples that draw random numbers, also from generators of the dataset.
        - Caches that are filled when an item is first read.
        - Datasets whose plain attributes change, such as an epoch or a size.
        - Workers, which have their own copy of the dataset.

    Fix:
        Copy the item first, or use operations that return a new tensor.

    Source:
        https://github.com/facebookresearch/pycls/pull/21
    """

    title = "Reading a sample changes the dataset"
    likely_cause = (
        "__getitem__ or a transform may write to the stored data in place: an index or a view "
        "is no copy."
    )
    fix = "Copy the item first: self.data[index].clone(), or .copy() for an array."
    needs = needs_of(DatasetReads)

    def judge(self, event: Event) -> Sequence[Violation]:
        found = observed(event, DatasetReads)
        if found is None:
            return ()
        self.triggered += 1
        is_written = found.written >= _LEAST
        is_changed = found.differing >= _LEAST or found.returned >= _LEAST
        if not (is_written and is_changed) or found.cls in self.reported:
            return ()
        self.reported.add(found.cls)
        name = found.cls.rpartition(".")[2]
        seen = f"{found.differing} of {found.compared} samples have other values than before"
        if not found.compared:
            seen = f"{found.returned} of them are the samples that it returns"
        violation = self.violation(
            event,
            subject=Subject(api=f"{found.cls}.__getitem__"),
            symptom=Symptom.REPEATED_DATA,
            message=f"reading a sample of {name} changes {found.attribute}",
            expected="an index gives the same values in each epoch",
            observed=(
                f"in epoch {found.epoch}, fetching changes {found.written} of {found.watched} "
                f"items in {name}.{found.attribute}; {seen}"
            ),
        )
        return [violation]
