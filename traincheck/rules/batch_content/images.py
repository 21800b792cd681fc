"""Images of batches: not scaled, without content, with their channels last."""

from __future__ import annotations

import math
from collections.abc import Sequence

from traincheck.readings.losses import number
from traincheck.rules.base.model_rule import about
from traincheck.rules.shared.batches import BATCHES, BatchLeafRule, is_image, may_be_images
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_summary

_BYTE = 255
_ROW_DIMS = 2  # dims of a table
_STEPS = 3  # consecutive scanned steps
_LAYERS = ("torch.nn.modules.conv.Conv2d.forward", "torch.nn.modules.linear.Linear.forward")


class UnscaledImage(BatchLeafRule, code="TC918", severity="info"):
    """unscaled-image: images still have byte values.

    What it checks:
        - Batches of floating-point images are not in 0..255, and not far below zero.
        - Images that arrive as bytes are scaled before they reach the first layer.

    Why it matters:
        Weights are initialized for inputs of about one. The first steps are unstable, and norms and
        decay do not fit.

    Fires on:
        - Float images with values from 0 to 255 in three consecutive batches.
        - Float images whose values are all below -50 in three consecutive batches.
        - Byte images that the loop or the model casts to float without scaling, in three
          consecutive steps.

    Stays quiet on:
        - Images in 0..1 or normalized.
        - Integers that the loop or the model scales before the first convolution or linear layer.
        - Tensors that are not images (tables, targets, tokens).

    Fix:
        Divide by 255, or use a transform that scales.

    Source:
        https://docs.pytorch.org/vision/stable/transforms.html

    Options:
        bright: values up to this, and down to its negative, count as scaled.
    """

    title = "Images in a batch are not scaled"
    likely_cause = "The conversion to float may not have divided by 255."
    fix = "Divide by 255 and normalize, unless the model does so itself."
    needs = BATCHES | Needs(calls=frozenset({Families.MODULE}), stats=frozenset({"input"}))

    def __init__(self, bright: float = 50.0) -> None:
        super().__init__()
        self._bright = bright
        self._rows: set[int] = set()  # elements of one image, for images that arrive as bytes
        self._steps: dict[str, set[int]] = {}  # module -> steps in which it received bytes

    def observe(self, event: Event) -> Sequence[Violation]:
        if isinstance(event, CallEvent):
            return self._layer(event) if event.api in _LAYERS else ()
        return super().observe(event)

    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        low, high = number(tensor, "min"), number(tensor, "max")
        if low is None or high is None:
            return ()
        if tensor.dtype == "uint8" and len(tensor.shape) > _ROW_DIMS and high > self._bright:
            self.triggered += 1
            self._rows.add(math.prod(tensor.shape[1:]))
        if not is_image(tensor):
            return ()
        self.triggered += 1
        is_of_bytes = low >= 0 and self._bright < high <= _BYTE
        # From values far below zero, a mean of bytes was subtracted too often
        if not is_of_bytes and high >= -self._bright:
            return ()
        return self.again(
            event,
            path,
            expected="values near 0, about 1 wide",
            observed=f"values from {low:g} to {high:g}",
        )

    def _layer(self, event: CallEvent) -> Sequence[Violation]:
        tensor = tensor_summary(event.args.get("0"))
        name = event.module or event.api
        if tensor is None or event.step is None or not self._are_bytes(tensor):
            return ()
        steps = self._steps.setdefault(name, set())
        if len(steps) >= _STEPS:
            return ()
        steps.add(event.step)
        if len(steps) < _STEPS:
            return ()
        low, high = number(tensor, "min"), number(tensor, "max")
        return [
            about(
                self.info,
                event,
                [name],
                expected="values near 0, about 1 wide",
                observed=f"byte images are cast to {tensor.dtype} and still have values from "
                f"{low:g} to {high:g}",
            )
        ]

    def _are_bytes(self, tensor: TensorSummary) -> bool:
        low, high = number(tensor, "min"), number(tensor, "max")
        if low is None or high is None or not (low >= 0 and self._bright < high <= _BYTE):
            return False
        if may_be_images(tensor):  # a crop has another size
            return bool(self._rows)
        return math.prod(tensor.shape[1:]) in self._rows


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
