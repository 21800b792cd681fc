"""A model that is not, or not wholly, on the GPU that is there."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.base.model_rule import MODELS, Model, ModelRule, about
from traincheck.schema.findings import Violation


class ModelOffTheGpu(ModelRule, code="TC904", severity="info"):
    """model-off-the-gpu: a model that is not, or not wholly, on the GPU that is there.

    What it checks:
        Where torch can use a GPU, a model's parameters and buffers are on it, all of them.

    Why it matters:
        A forgotten .cuda() trains at a fraction of the speed; a model in two places copies at
        each call.

    Fires on:
        A model on the CPU of a machine with a GPU; a model with parameters on both.

    Stays quiet on:
        Machines without a GPU; a torch built without CUDA; models wholly on the GPU.

    Fix:
        model.to(device) before the optimizer is built.

    Source:
        https://docs.pytorch.org/docs/stable/notes/cuda.html
    """

    title = "A model is not on the GPU"
    likely_cause = "The model, or a part that was added later, was not moved."
    fix = (
        "Call model.to(device) before the optimizer is built; register tensors as buffers so "
        "that they move along."
    )
    needs = MODELS

    def judge(self, model: Model) -> Sequence[Violation]:
        if not model.devices:
            return ()
        self.triggered += 1
        on_cpu = model.devices.get("cpu", 0)
        if model.is_on_cuda and on_cpu:
            seen = f"{on_cpu} elements on cpu, the others on a GPU"
        elif on_cpu and model.cuda:
            seen = "all on cpu, beside a GPU"
        else:
            return ()
        return [
            about(
                self.info,
                model.event,
                [model.name],
                expected="parameters and buffers are on the GPU",
                observed=seen,
            )
        ]
