"""Images whose channels come last."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.shared.batches import BATCHES, BatchLeafRule
from traincheck.schema.events import BatchEvent
from traincheck.schema.findings import Violation
from traincheck.schema.values import TensorSummary

_IMAGES = 4  # dims
_CHANNELS = frozenset({1, 3, 4})
_COLOURS, _LARGE = 3, 128  # of an image that is not square


class ChannelsLastBatch(BatchLeafRule, code="TC920", severity="info"):
    """channels-last-batch: images have their channels in the last dim.

    What it checks:
        Batches of images have their channels in the second dim.

    Why it matters:
        A convolution, or a model that flattens, reads rows as channels if the sizes happen to
        match.

    Fires on:
        - Float tensors of shape (batch, 224, 224, 3) in three consecutive batches.

    Stays quiet on:
        - Channels in the second dim.
        - Small feature maps.
        - Tensors that are not square.
        - Integers, which a processor converts.

    Fix:
        Call permute(0, 3, 1, 2) once, when images are read.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv2d.html

    Options:
        smallest: images with fewer rows may be feature maps.
    """

    title = "Images in a batch have their channels last"
    likely_cause = "The images may come from NumPy or PIL, which have (height, width, channels)."
    fix = "Permute to (batch, channels, height, width), unless the model does so itself."
    needs = BATCHES

    def __init__(self, smallest: int = 32) -> None:
        super().__init__()
        self._smallest = smallest

    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        if len(tensor.shape) != _IMAGES or not tensor.dtype.startswith(("float", "bfloat")):
            return ()
        self.triggered += 1
        _, height, width, channels = tensor.shape
        if channels not in _CHANNELS or min(height, width) < self._smallest:
            return ()
        is_photo = channels == _COLOURS and min(height, width) >= _LARGE
        if height != width and not is_photo:  # (batch, channels, time, 1) is not an image
            return ()
        return self.again(
            event,
            path,
            expected="images as (batch, channels, height, width)",
            observed=f"shape {list(tensor.shape)}",
        )
