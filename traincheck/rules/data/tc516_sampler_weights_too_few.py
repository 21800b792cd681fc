"""A weighted sampler has fewer weights than there are samples."""

from __future__ import annotations

from traincheck.rules.base.event_rule import EventRule
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER
from traincheck.schema.events import BatchEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation


class SamplerWeightsTooFew(EventRule, code="TC516", severity="error", aliases=("too-few-weights",)):
    """sampler-weights-too-few: a weighted sampler draws only the first few samples of a dataset.

    What it checks:
        WeightedRandomSampler was given a weight for each sample of the dataset.

    Why it matters:
        It draws indices below the number of its weights. Given one weight for each of ten classes,
        it draws the first ten samples for ever; the loss falls as the model learns them by heart.

    Fires on:
        WeightedRandomSampler(1 / class_counts, len(dataset)).

    Stays quiet on:
        A weight for each sample; other samplers; datasets whose length is not known.

    Fix:
        Look up the weight of each sample's class: weights[labels].

    Source:
        https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.WeightedRandomSampler
    """

    title = "Only the first samples of a dataset are drawn by {variables}"
    likely_cause = (
        "WeightedRandomSampler was given a weight for each class where it takes one for each "
        "sample: {observed}."
    )
    fix = "Give it the weight of each sample's class: WeightedRandomSampler(weights[labels], n)."
    needs = BATCHES

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[tuple[int, str]] = set()

    def judge(self, event: Event) -> list[Violation]:
        if not isinstance(event, BatchEvent) or not event.weights:
            return []
        key = (event.rank, event.loader)
        if key in self._seen:
            return []
        self._seen.add(key)
        self.triggered += 1
        if event.weights >= event.dataset_size:
            return []
        observed = f"{event.weights} weights for {event.dataset_size} samples"
        return [
            self.violation(
                event,
                subject=Subject(api=DATA_LOADER, variable=event.loader),
                symptom=Symptom.REPEATED_DATA,
                message=f"{event.loader} draws only the first {event.weights} samples: {observed}",
                expected="a weight for each sample",
                observed=observed,
            )
        ]
