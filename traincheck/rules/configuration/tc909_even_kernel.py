"""Convolution kernels without a center."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.rules.base.model_rule import CONVOLUTION, Advice, Model, ModelRule


class EvenKernel(ModelRule, code="TC909", severity="info"):
    """even-kernel: convolution kernels have no center.

    What it checks:
        Kernels of convolutions have odd sizes, unless they cut patches.

    Why it matters:
        An even kernel cannot be padded equally on both sides. Features shift by half a pixel from
        layer to layer.

    Fires on:
        - Conv2d(kernel_size=4, stride=1).

    Stays quiet on:
        - Odd kernels.
        - Even kernels with a stride above one, as in patch embeddings and the discriminator of a
          DCGAN.
        - Transposed convolutions.
        - Convolutions with groups, such as the causal ones of Mamba.

    Fix:
        Use a size of 3, 5 or 7, or pad one side on purpose.

    Source:
        https://papers.nips.cc/paper/2019/hash/2afe4567e1bf64d32a5527244d104cea-Abstract.html
    """

    title = "Convolutions have kernels of even size"
    likely_cause = "The kernel size is even."
    fix = "Use an odd kernel size with padding = size // 2."

    def judge(self, model: Model) -> Iterable[Advice]:
        odd_one_out = []
        for path, facts in model.of_family(CONVOLUTION):
            self.triggered += 1
            kernel, stride = facts.get("kernel_size", ()), facts.get("stride", ())
            # With a stride above one there is no center to preserve. A depthwise convolution
            # mixes positions in time and crops one side of them.
            is_by_channel = facts.get("groups", 1) > 1
            shifts = any(size % 2 == 0 and by == 1 for size, by in zip(kernel, stride))
            if shifts and not is_by_channel:
                odd_one_out.append(path)
        yield Advice(
            odd_one_out,
            expected="kernels have odd sizes",
            observed="an even kernel has no center",
        )
