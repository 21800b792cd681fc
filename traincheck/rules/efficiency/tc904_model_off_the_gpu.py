"""A model that is not entirely on the available GPU."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.rules.base.model_rule import Advice, Model, ModelRule


class ModelOffTheGpu(ModelRule, code="TC904", severity="info"):
    """model-off-the-gpu: a model is not entirely on the available GPU.

    What it checks:
        If torch can use a GPU, all parameters and buffers of a model are on it.

    Why it matters:
        A forgotten .cuda() trains at a fraction of the speed. A model on two devices copies at each
        call.

    Fires on:
        - A model on the CPU of a machine with a GPU.
        - A model with parameters on both.

    Stays quiet on:
        - Machines without a GPU.
        - A torch built without CUDA.
        - Models entirely on the GPU.

    Fix:
        Call model.to(device) before the optimizer is built.

    Source:
        https://docs.pytorch.org/docs/stable/notes/cuda.html
    """

    title = "A model is not on the GPU"
    likely_cause = "The model, or a part that was added later, may not have been moved."
    fix = (
        "Call model.to(device) before the optimizer is built, and register tensors as buffers so "
        "that they move with the model."
    )

    def judge(self, model: Model) -> Iterable[Advice]:
        if not model.devices:
            return
        self.triggered += 1
        on_cpu = model.devices.get("cpu", 0)
        if model.is_on_cuda and on_cpu:
            seen = f"{on_cpu} elements are on cpu, the others on a GPU"
        elif on_cpu and model.cuda:
            seen = "all elements are on cpu although a GPU is available"
        else:
            return
        yield Advice(
            [model.name],
            expected="parameters and buffers are on the GPU",
            observed=seen,
        )
