"""The eps of an optimizer is zero in the dtype of its parameters."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.step_facts import DISCOVERY
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

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

    def __init__(self) -> None:
        super().__init__()
        self._half: dict[int, str] = {}  # float16 parameters by identity
        self._optimizers: dict[str, OptimizerEvent] = {}
        self._reported: set[str] = set()

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
            return self._judge(event, self._optimizers[event.owner])
        return ()

    def _judge(self, call: CallEvent, optimizer: OptimizerEvent) -> list[Violation]:
        if optimizer.id in self._reported or call.family != Families.OPTIMIZER_STEP:
            return []
        found = []
        for group in optimizer.groups:
            eps = group.hyper.get("eps")
            if not isinstance(eps, (int, float)) or group.hyper.get("fused"):
                continue
            self.triggered += 1
            if eps < _LEAST:
                named = [self._half[i] for i in group.ids if i in self._half]
                found += [self._violation(call, optimizer, name, eps) for name in named]
        if found:
            self._reported.add(optimizer.id)
        return found

    def _violation(
        self, call: CallEvent, optimizer: OptimizerEvent, name: str, eps: float
    ) -> Violation:
        cls = optimizer.cls.rpartition(".")[2]
        return Violation(
            check_id=self.code,
            step=call.step,
            rank=call.rank,
            stage="train",
            subject=Subject(api=call.api, variable=name),
            symptom=Symptom.PRECISION,
            message=f"{optimizer.id} ({cls}) updates {name} in float16, in which its eps is zero",
            expected="an eps that float16 can represent (6e-8 or more)",
            observed=f"eps={eps:g}",
            evidence=(optimizer, call),
        )
