"""Negative numbers in ids or labels."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.losses import number
from traincheck.rules.shared.batches import BATCHES, BatchLeafRule
from traincheck.schema.events import BatchEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import IGNORED_LABEL
from traincheck.schema.values import TensorSummary

_IGNORED = frozenset({IGNORED_LABEL, -1})


class NegativeIndex(BatchLeafRule, code="TC921", severity="info"):
    """negative-index: ids or labels contain negative numbers.

    What it checks:
        Integers in a batch are not negative, except for the two values that mean "ignore".

    Why it matters:
        A negative index silently counts from the end wherever Python or gather() does the indexing.

    Fires on:
        - Labels or ids that go down to -7 in three consecutive batches.

    Stays quiet on:
        - -100 and -1, the usual values for ignored positions.
        - Floating-point targets.

    Fix:
        Find a shift (labels from 1 to n minus 2), an overflow, or a code for missing categories.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    title = "Integers in a batch are negative"
    likely_cause = (
        "The values may have an offset, overflow a small integer type, or contain a code for "
        "missing values."
    )
    fix = "Map the values to 0..n-1, or to -100 where they should be ignored."
    needs = BATCHES

    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        low = number(tensor, "min")
        if low is None or not tensor.dtype.startswith("int"):
            return ()
        self.triggered += 1
        if low >= 0 or low in _IGNORED:
            return ()
        return self.again(
            event,
            path,
            expected="ids and labels of 0 or more (or -100, -1: ignored)",
            observed=f"the smallest is {low:g}",
        )
