"""TC909: convolution kernels without a middle."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules._models import CONVOLUTION, MODELS, Model, ModelMonitor, about
from traincheck.schema.findings import CheckInfo, Violation


class EvenKernel:
    """TC909 even-kernel: convolution kernels without a middle.

    What it checks:
        Kernels of convolutions have odd sizes, unless they cut patches.

    Why it matters:
        An even kernel cannot be padded alike on both sides: features shift by half a pixel from
        layer to layer.

    Fires on:
        Conv2d(kernel_size=4, stride=1).

    Stays quiet on:
        Odd kernels; patch embeddings, whose stride is their kernel size; transposed
        convolutions.

    Fix:
        Use 3, 5 or 7, or pad one side on purpose.

    Source:
        https://papers.nips.cc/paper/2019/hash/2afe4567e1bf64d32a5527244d104cea-Abstract.html
    """

    info = CheckInfo(
        check_id="TC909",
        kind="rule",
        code="TC909",
        severity="info",
        title="Convolutions have kernels of even size",
        likely_cause="An even kernel size.",
        fix="Use an odd kernel size with padding = size // 2.",
    )
    needs = MODELS

    def monitor(self) -> Kernels:
        return Kernels(self.info)


class Kernels(ModelMonitor):
    """Looks at the structure of each model."""

    def judge(self, model: Model) -> Sequence[Violation]:
        odd_one_out = []
        for path, facts in model.of_family(CONVOLUTION):
            self.triggered += 1
            kernel, stride = facts.get("kernel_size", ()), facts.get("stride", ())
            # A kernel that moves by its own size cuts patches: nothing overlaps, nothing shifts.
            if kernel != stride and any(size % 2 == 0 for size in kernel):
                odd_one_out.append(path)
        if not odd_one_out:
            return ()
        return [
            about(
                self._info,
                model.event,
                odd_one_out,
                expected="kernels have odd sizes",
                observed="an even kernel has no middle",
            )
        ]
