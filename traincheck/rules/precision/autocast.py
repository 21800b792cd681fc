"""Mixed precision without effect, without scaling, or with an epsilon that underflows."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.step_facts import DISCOVERY
from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StateEvent, StepEvent
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
    _dtypes: dict[str, int] = fresh(dict)
    _last: CallEvent | None = None

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
        asked = event.autocast
        if asked is None or not event.grad_enabled or not dtypes or self._last is None:
            return []
        self.triggered += 1
        if set(dtypes) != {"float32"} or dtypes["float32"] < _FEW or asked == "float32":
            return []
        observed = f"all {dtypes['float32']} matrix products are in float32, none in {asked}"
        return self.found(
            event,
            subject=Subject(api=self._last.api, module=event.module),
            symptom=Symptom.PRECISION,
            message=f"{event.module} runs under autocast to {asked}, but {observed}",
            expected=f"matrix products in {asked}",
            observed=observed,
            evidence=(self._last, event),
        )


_LEAST = 2.0**-25  # float16 rounds this to zero


class EpsUnderflows(BuiltInRule, code="TC803", severity="error", aliases=("eps-vanishes",)):
    """eps-underflows: eps of Adam is zero in float16.

    What it checks:
        An optimizer over float16 parameters has an eps that float16 can represent. This applies to
        optimizers that divide by the root of a running mean plus eps.

    Why it matters:
        The usual 1e-8 is zero in float16. If gradients are small or zero, the update divides zero
        by zero, and parameters become NaN.

    Fires on:
        - Adam, AdamW, RMSprop and similar optimizers over float16 parameters that step with an eps
          that rounds to zero.

    Stays quiet on:
        - float32 and bfloat16 parameters, also under autocast.
        - Fused optimizers, which compute in float32.
        - A larger eps.

    Fix:
        Keep parameters in float32 and use autocast, or set eps=1e-4.

    Source:
        https://github.com/pytorch/pytorch/issues/147437
    """

    title = "eps of {subject} is zero in float16"
    likely_cause = (
        "{variables} {is|are} in float16, in which eps is rounded to zero: {observed}. The update "
        "divides by zero when gradients are small."
    )
    fix = "Keep parameters in float32 under autocast, or raise eps to 1e-4."
    needs = DISCOVERY | Needs(calls=frozenset({Families.OPTIMIZER_STEP}))
    _half: dict[int, str] = fresh(dict)  # float16 parameters by identity
    _optimizers: dict[str, OptimizerEvent] = fresh(dict)

    def observe(self, event: Event) -> Sequence[Violation]:
        if isinstance(event, StateEvent):
            if event.role == "parameter" and event.summary is not None:
                if event.summary.dtype == "float16":
                    self._half[event.identity] = event.name
                else:
                    self._half.pop(event.identity, None)
        elif isinstance(event, OptimizerEvent):
            self._optimizers[event.id] = event
        elif isinstance(event, CallEvent) and event.owner in self._optimizers:
            optimizer = self._optimizers[event.owner]
            if optimizer.id in self.reported or event.family != Families.OPTIMIZER_STEP:
                return []
            found = []
            for group in optimizer.groups:
                eps = group.hyper.get("eps")
                if not isinstance(eps, (int, float)) or group.hyper.get("fused"):
                    continue
                self.triggered += 1
                if eps < _LEAST:
                    named = [self._half[i] for i in group.ids if i in self._half]
                    found += [self._violation(event, optimizer, name, eps) for name in named]
            if found:
                self.reported.add(optimizer.id)
            return found
        return ()

    def _violation(
        self, call: CallEvent, optimizer: OptimizerEvent, name: str, eps: float
    ) -> Violation:
        cls = optimizer.cls.rpartition(".")[2]
        return self.violation(
            call,
            stage="train",
            subject=Subject(api=call.api, variable=name),
            symptom=Symptom.PRECISION,
            message=f"{optimizer.id} ({cls}) updates {name} in float16, in which its eps is zero",
            expected="an eps that float16 can represent (6e-8 or more)",
            observed=f"eps={eps:g}",
            evidence=(optimizer, call),
        )


_SCALER = frozenset(
    {"torch.amp.GradScaler.scale", Families.SCALER_STEP, Families.SCALER_UPDATE, Families.UNSCALE}
)


class LossNotScaled(BuiltInRule, code="TC804"):
    """loss-not-scaled: gradients in float16 are not protected from underflow.

    What it checks:
        If a model is trained under autocast to float16, the loss goes through a GradScaler.

    Why it matters:
        Gradients below 6e-8 are zero in float16. Layers far from the loss stop learning first.

    Fires on:
        - Two steps under autocast to float16 without any call of a GradScaler.

    Stays quiet on:
        - bfloat16, whose range is that of float32.
        - Any use of a GradScaler.
        - Evaluation.

    Fix:
        Use torch.amp.GradScaler, or autocast to bfloat16.

    Source:
        https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    title = "{subject} is trained in float16 without a GradScaler"
    likely_cause = (
        "Autocast uses float16, but the loss is not scaled before backward(), so small "
        "gradients are rounded to zero."
    )
    fix = "Scale the loss with torch.amp.GradScaler, or use dtype=torch.bfloat16."
    needs = Needs(
        calls=_SCALER | {Families.MODULE},
        kinds=frozenset({"step"}),
    )
    _is_scaled = False
    _root: CallEvent | None = None  # of this step
    _first: CallEvent | None = None

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent):
            if (event.family or event.api) in _SCALER:
                self._is_scaled = True
            elif event.root and event.autocast == "float16" and event.grad_enabled:
                self._root = event
        elif isinstance(event, StepEvent):
            root, self._root = self._root, None
            if event.counters.get("scaler_step", 0):
                self._is_scaled = True
            if root is None or not event.counters.get("optimizer_step", 0) or not event.recorded:
                return []
            self.triggered += 1
            first, self._first = self._first, root
            if self._is_scaled or first is None:
                return []
            return self.found(
                first,
                stage="train",
                subject=Subject(module=first.module),
                symptom=Symptom.PRECISION,
                message=f"{first.module} is trained in float16 autocast with an unscaled loss",
                expected="a GradScaler between loss and backward()",
                observed="no call of a GradScaler",
                evidence=(first, root, event),
            )
        return []
