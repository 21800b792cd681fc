"""TC918: images that still have the values of bytes."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules._batches import BATCHES, Leaves, is_image
from traincheck.rules._losses import number
from traincheck.schema.events import BatchEvent
from traincheck.schema.findings import CheckInfo, Violation
from traincheck.schema.values import TensorSummary

_BRIGHT, _BYTE = 50, 255


class UnscaledImage:
    """TC918 unscaled-image: images that still have the values of bytes.

    What it checks:
        Batches of floating-point images are not in 0..255, and not far below zero.

    Why it matters:
        Weights are initialized for inputs of about one: the first steps are wild, norms and
        decay are off.

    Fires on:
        Float images with values from 0 to 255 in three batches in a row; values all of which are
        below -50.

    Stays quiet on:
        Images in 0..1 or normalized; integers, which the model converts; tensors that are no
        images (tables, targets, tokens).

    Fix:
        Divide by 255, or use a transform that scales.

    Source:
        https://docs.pytorch.org/vision/stable/transforms.html
    """

    info = CheckInfo(
        check_id="TC918",
        kind="rule",
        code="TC918",
        severity="info",
        title="Images in a batch are not scaled",
        likely_cause="The conversion to float did not divide by 255.",
        fix="Divide by 255 and normalize, unless the model does so itself.",
    )
    needs = BATCHES

    def monitor(self) -> Scaling:
        return Scaling(self.info)


class Scaling(Leaves):
    """Looks at each tensor of a batch."""

    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        low, high = number(tensor, "min"), number(tensor, "max")
        if low is None or high is None or not is_image(tensor):
            return ()
        self.triggered += 1
        is_of_bytes = low >= 0 and _BRIGHT < high <= _BYTE
        if not is_of_bytes and high >= -_BRIGHT:  # a mean of bytes that was taken away too often
            return ()
        return self.again(
            event,
            path,
            expected="values near 0, about 1 wide",
            observed=f"values from {low:g} to {high:g}",
        )
