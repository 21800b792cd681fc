"""A weighted sampler has fewer weights than the dataset has samples."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER
from traincheck.schema.events import BatchEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation


class SamplerWeightsTooFew(EventRule, code="TC516", severity="error", aliases=("too-few-weights",)):
    """sampler-weights-too-few: a weighted sampler draws only the first few samples of a dataset.

    What it checks:
        WeightedRandomSampler has a weight for each sample of the dataset.

    Why it matters:
        It draws indices below the number of its weights. With one weight for each of ten classes,
        it only ever draws the first ten samples. The loss falls as the model memorizes them.

    Fires on:
        - WeightedRandomSampler(1 / class_counts, len(dataset)).

    Stays quiet on:
        - A weight for each sample.
        - Other samplers.
        - Datasets of unknown length.

    Fix:
        Look up the weight of each sample's class: weights[labels].

    Source:
        https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.WeightedRandomSampler
    """

    title = "Only the first samples of a dataset are drawn by {variables}"
    likely_cause = (
        "WeightedRandomSampler may have received one weight for each class instead of one for "
        "each sample: {observed}."
    )
    fix = "Pass the weight of each sample's class: WeightedRandomSampler(weights[labels], n)."
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
