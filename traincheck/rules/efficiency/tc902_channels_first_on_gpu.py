"""Half-precision convolutions in channels-first layout."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.rules.base.model_rule import CONVOLUTION, Advice, Model, ModelRule

_HALF = frozenset({"float16", "bfloat16"})


class ChannelsFirstOnGpu(ModelRule, code="TC902", severity="info"):
    """channels-first-on-gpu: half-precision convolutions are stored channels-first.

    What it checks:
        On a GPU in half precision, at least one convolution of a model is stored channels-last.

    Why it matters:
        Kernels for tensor cores read channels-last tensors. With another layout, each call
        transposes.

    Fires on:
        - A bfloat16 convolutional model on CUDA, none of whose weights is channels-last.

    Stays quiet on:
        - Models on a CPU or in full precision.
        - Models without convolutions.
        - Models that are channels-last.

    Fix:
        Call model.to(memory_format=torch.channels_last), and convert the inputs as well.

    Source:
        https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """

    title = "Convolutions are stored channels-first on a GPU"
    likely_cause = "The model was not converted to the channels-last layout."
    fix = "Call model.to(memory_format=torch.channels_last), and convert the inputs as well."

    def judge(self, model: Model) -> Iterable[Advice]:
        if not model.is_on_cuda or not _HALF & set(model.dtypes):
            return
        layouts = [
            (path, facts["channels_last"])
            for path, facts in model.of_family(CONVOLUTION)
            if "channels_last" in facts
        ]
        self.triggered += bool(layouts)
        if not layouts or any(last for _, last in layouts):
            return
        yield Advice(
            [path for path, _ in layouts],
            expected="weights of convolutions are stored channels-last",
            observed="weights are channels-first",
        )
