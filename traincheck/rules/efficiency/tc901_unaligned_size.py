"""Sizes that tensor cores cannot use fully."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.rules.base.model_rule import CONVOLUTION, LINEAR, Advice, Model, ModelRule

_HALF = frozenset({"float16", "bfloat16"})
_SIZES = ("in_features", "out_features", "in_channels", "out_channels")


class UnalignedSize(ModelRule, code="TC901", severity="info"):
    """unaligned-size: sizes that tensor cores cannot use fully.

    What it checks:
        On a GPU in half precision, the inputs and outputs of the inner linear and convolution
        layers are multiples of 8.

    Why it matters:
        Matrix units work on tiles. Other sizes are padded, or do not use them.

    Fires on:
        - An inner layer of 100 units in a bfloat16 model on CUDA.

    Stays quiet on:
        - Models on a CPU or in full precision.
        - The first and the last layer, whose sizes depend on the data.
        - Aligned sizes.

    Fix:
        Round hidden sizes and the size of the vocabulary up to a multiple of 8 (of 16 for 8-bit
        integers).

    Source:
        https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/

    Options:
        multiple: sizes must be multiples of it; 16 for 8-bit integers.
    """

    title = "Sizes of inner layers do not match the tiles of tensor cores"
    likely_cause = "The sizes were chosen without regard to the tiles of the hardware."
    fix = "Round hidden sizes up to a multiple of 8."

    def __init__(self, multiple: int = 8) -> None:
        super().__init__()
        self._multiple = multiple

    def judge(self, model: Model) -> Iterable[Advice]:
        if not model.is_on_cuda or not _HALF & set(model.dtypes):
            return
        self.triggered += 1
        layers = list(model.of_family(LINEAR, CONVOLUTION))
        odd = [
            path
            for path, facts in layers[1:-1]  # the data determines the input and output sizes
            if any(facts.get(key, 0) % self._multiple for key in _SIZES)
        ]
        yield Advice(
            odd,
            expected=f"sizes of inner layers are multiples of {self._multiple}",
            observed="inputs or outputs are not a multiple of 8",
        )
