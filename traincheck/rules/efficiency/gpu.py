"""Models that use a GPU badly: sizes, layout, precision, place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from traincheck.rules.base.model_rule import (
    CONVOLUTION,
    LINEAR,
    MODELS,
    Advice,
    Model,
    ModelRule,
    about,
    model_of,
)
from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import Families

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
    multiple: int = 8

    def judge(self, model: Model) -> Iterable[Advice]:
        if not model.is_on_cuda or not _HALF & set(model.dtypes):
            return
        self.triggered += 1
        layers = list(model.of_family(LINEAR, CONVOLUTION))
        odd = [
            path
            for path, facts in layers[1:-1]  # the data determines the input and output sizes
            if any(facts.get(key, 0) % self.multiple for key in _SIZES)
        ]
        yield Advice(
            odd,
            expected=f"sizes of inner layers are multiples of {self.multiple}",
            observed="inputs or outputs are not a multiple of 8",
        )


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


_STEPS = 3


class FullPrecisionOnGpu(BuiltInRule, code="TC903", severity="info"):
    """full-precision-on-gpu: training on a GPU uses only float32.

    What it checks:
        If more than nine in ten parameter elements of a model on a GPU are float32, it is trained
        under autocast.

    Why it matters:
        Half precision is two to four times as fast on current GPUs, and takes half the memory
        for activations.

    Fires on:
        - Three training steps of a float32 model on CUDA without autocast.

    Stays quiet on:
        - Models on a CPU.
        - Autocast.
        - Parameters in half precision.
        - Models that are only evaluated.

    Fix:
        Use torch.autocast("cuda", dtype=torch.bfloat16) around the forward and the loss.

    Source:
        https://docs.pytorch.org/docs/stable/amp.html

    Options:
        share: share of float32 among all parameter elements above which the rule fires, in [0, 1].
    """

    title = "Training on a GPU uses only float32"
    likely_cause = "Neither autocast nor a half-precision model is used."
    fix = "Run forward and loss under torch.autocast('cuda', dtype=torch.bfloat16)."
    needs = MODELS | Needs(calls=frozenset({Families.MODULE}), kinds=frozenset({"step"}))
    share: float = 0.9
    _models: dict[str, Model] = fresh(dict)
    _steps: dict[str, int] = fresh(dict)
    _called: set[str] = fresh(set)

    def observe(self, event: Event) -> Sequence[Violation]:
        model = model_of(event)
        if model is not None:
            if model.is_on_cuda and model.dtypes.get("float32", 0) > self.share * sum(
                model.dtypes.values()
            ):
                self._models[model.name] = model
        elif isinstance(event, CallEvent):
            if event.root and event.grad_enabled and event.module in self._models:
                if event.autocast is None:
                    self._called.add(event.module)
                else:
                    del self._models[event.module]
        elif isinstance(event, StepEvent):
            called, self._called = self._called & set(self._models), set()
            found = []
            for name in sorted(called):
                self.triggered += 1
                self._steps[name] = self._steps.get(name, 0) + 1
                if self._steps[name] == _STEPS:
                    del self._models[name]
                    found.append(
                        about(
                            self.info,
                            event,
                            [name],
                            expected="autocast, or parameters in half precision",
                            observed="float32 without autocast",
                        )
                    )
            return found
        return ()


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
