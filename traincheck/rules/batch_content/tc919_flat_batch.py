"""Images without any content."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.losses import number
from traincheck.rules.shared.batches import BATCHES, BatchLeafRule, is_image
from traincheck.schema.events import BatchEvent
from traincheck.schema.findings import Violation
from traincheck.schema.values import TensorSummary


class FlatBatch(BatchLeafRule, code="TC919"):
    """flat-batch: images have no content.

    What it checks:
        Batches of images contain more than one value.

    Why it matters:
        A broken decoder or transform returns black images, and the model learns only the frequency
        of the classes.

    Fires on:
        - Three consecutive batches in which every pixel of every image has the same value.

    Stays quiet on:
        - Masks and other tensors that are not images.
        - A single flat batch.

    Fix:
        Inspect the output of the dataset, before and after each transform.

    Source:
        https://github.com/pytorch/vision/issues/2194

    Options:
        spread: least difference between the smallest and the largest value; relative above 1.
    """

    title = "Images in a batch have only one value"
    likely_cause = "A transform, a decoder or a cast may destroy the images."
    fix = "Print minimum and maximum of a sample after each transform."
    needs = BATCHES

    def __init__(self, spread: float = 1e-5) -> None:
        super().__init__()
        self._spread = spread

    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        low, high = number(tensor, "min"), number(tensor, "max")
        if low is None or high is None or not is_image(tensor) or tensor.shape[0] == 0:
            return ()
        self.triggered += 1
        if high - low >= self._spread * max(1.0, abs(high)):
            return ()
        return self.again(
            event,
            path,
            expected="images whose pixels differ",
            observed=f"every value is {low:g}",
        )
