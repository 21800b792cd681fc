"""A model runs under autocast, but its matrix products stay in float32."""

from __future__ import annotations

from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensor_summary

_F = "torch.nn.functional."
PRODUCTS = frozenset(
    {f"{_F}{n}" for n in ("linear", "bilinear", "conv1d", "conv2d", "conv3d")}
    | {f"{_F}conv_transpose{d}d" for d in (1, 2, 3)}
    | {"torch.matmul", "torch.mm", "torch.bmm"}
)
_FEW = 2  # a single product may be in float32 on purpose


class AutocastWithoutEffect(BuiltInRule, code="TC801"):
    """autocast-without-effect: under autocast, no matrix product has the autocast dtype.

    What it checks:
        Within a training call of a model under autocast, at least one linear layer, convolution or
        matrix product returns the autocast dtype.

    Why it matters:
        The run is as slow and uses as much memory as in float32. Its numbers are not those of a
        mixed-precision run.

    Fires on:
        All products of the model must be affected.

        - Operations that are dispatched past autocast, or inside regions that disable it.
        - Autocast for another device than that of the model.

    Stays quiet on:
        - Parts in float32 on purpose, beside others that are not.
        - Models without recorded products.
        - float64.
        - Evaluation.

    Fix:
        Check the device type of autocast, and remove autocast(enabled=False) around the layers.

    Source:
        https://github.com/Lightning-AI/lightning-thunder/issues/725
    """

    title = "Autocast has no effect in {subject}"
    likely_cause = (
        "Autocast is on around {subject}, but {observed}: its operations may run past "
        "autocast, in a region that disables it, or on another device."
    )
    fix = "Check the device type of autocast, and regions inside the model that disable it."
    needs = Needs(calls=PRODUCTS | {Families.MODULE}, kinds=frozenset({"step"}))

    def __init__(self) -> None:
        super().__init__()
        self._dtypes: dict[str, int] = {}
        self._last: CallEvent | None = None

    def observe(self, event: Event) -> list[Violation]:
        if not isinstance(event, CallEvent):
            return []
        if event.api in PRODUCTS:
            result = tensor_summary(event.result)
            if result is not None and event.parent is not None:
                self._dtypes[result.dtype] = self._dtypes.get(result.dtype, 0) + 1
                self._last = event
            return []
        if not event.root:
            return []
        dtypes, self._dtypes = self._dtypes, {}
        return self._judge(event, dtypes)

    def _judge(self, root: CallEvent, dtypes: dict[str, int]) -> list[Violation]:
        asked = root.autocast
        if asked is None or not root.grad_enabled or not dtypes or self._last is None:
            return []
        self.triggered += 1
        if set(dtypes) != {"float32"} or dtypes["float32"] < _FEW or asked == "float32":
            return []
        observed = f"all {dtypes['float32']} matrix products are in float32, none in {asked}"
        return [
            self.violation(
                root,
                subject=Subject(api=self._last.api, module=root.module),
                symptom=Symptom.PRECISION,
                message=f"{root.module} runs under autocast to {asked}, but {observed}",
                expected=f"matrix products in {asked}",
                observed=observed,
                evidence=(self._last, root),
            )
        ]
