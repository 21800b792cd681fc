"""Training on a GPU entirely in float32."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.base.model_rule import MODELS, Model, about, model_of
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import Families

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

    def __init__(self, share: float = 0.9) -> None:
        super().__init__()
        self._share = share
        self._models: dict[str, Model] = {}
        self._steps: dict[str, int] = {}
        self._called: set[str] = set()

    def observe(self, event: Event) -> Sequence[Violation]:
        model = model_of(event)
        if model is not None:
            if model.is_on_cuda and model.dtypes.get("float32", 0) > self._share * sum(
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
            return self._count(event)
        return ()

    def _count(self, event: StepEvent) -> Sequence[Violation]:
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
