"""Nearly all labels of the batches are equal. Advice only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.values import tensor_summary


class ClassImbalance(BuiltInRule, code="TC713", severity="info"):
    """class-imbalance: one class makes up nearly all of the training labels.

    What it checks:
        Among the integer labels of a batch (one per sample), no value makes up nearly all of them.

    Why it matters:
        A model that always predicts that class is nearly always right, and learns little else.

    Fires on:
        - A most frequent value of more than 90 % on average over 50 training batches, in which
          other values occur too.

    Stays quiet on:
        - A column that never changes.
        - Labels with several dims.
        - Batches of fewer than 8 samples.
        - Evaluation.

    Fix:
        Weight the classes in the loss, or draw them evenly (WeightedRandomSampler). Measure the
        recall of each class instead of the accuracy.

    Options:
        share: share of the most frequent value, in [0, 1].
        batches: number of batches over which its mean is taken.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "Nearly all labels in {variables} are of one class"
    likely_cause = "{observed}."
    fix = "Weight the classes in the loss, or draw them evenly with WeightedRandomSampler."
    needs = Needs(kinds=frozenset({"batch"}), stats=frozenset({"batch"}))
    share: float = 0.9
    batches: int = 50
    _columns: dict[tuple[str, str], _Column] = fresh(dict)

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, BatchEvent) or event.stage not in ("train", "init"):
            return ()
        found: list[Violation] = []
        for path, leaf in event.leaves.items():
            summary = tensor_summary(leaf)
            stats = None if summary is None else summary.stats
            if summary is None or stats is None or "top" not in stats:
                continue
            if summary.shape[0] < _SAMPLES:
                continue
            column = self._columns.setdefault((event.loader, path), _Column())
            if column.count >= self.batches:
                continue
            column.total += stats["top"]
            column.count += 1
            column.low = min(column.low, stats["min"])
            column.high = max(column.high, stats["max"])
            if column.count == self.batches:
                self.triggered += 1
                share = column.total / column.count
                if share <= self.share or column.low == column.high:
                    continue
                found += self.found(
                    event,
                    stage="train",
                    subject=Subject(variable=path),
                    symptom=Symptom.NOT_LEARNING,
                    message=f"one class makes up nearly all labels in {path} of {event.loader}",
                    expected="labels of several classes in a batch",
                    observed=f"{share:.0%} of the labels in {column.count} batches are one class",
                )
        return found


_SAMPLES = 8


@dataclass(slots=True)
class _Column:
    total: float = 0.0
    count: int = 0
    low: float = float("inf")
    high: float = float("-inf")
