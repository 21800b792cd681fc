"""A loss is computed in half precision."""

from __future__ import annotations

from traincheck.readings.losses import BCE_LOGITS, CROSS_ENTROPY, NLL, F, as_loss, given, loss_needs
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation

_LOSSES = (CROSS_ENTROPY, NLL, BCE_LOGITS, f"{F}mse_loss", f"{F}kl_div", f"{F}l1_loss")
_HALF = ("bfloat16", "float16")


class LossInHalf(BuiltInRule, code="TC806", severity="info"):
    """loss-in-half: a loss is accumulated in half precision.

    What it checks:
        Losses are computed in float32.

    Why it matters:
        A mean over many elements, or the logarithm of a small probability, has two or three digits
        in half precision. The loss changes in visible steps, and small differences between samples
        vanish.

    Fires on:
        - A loss whose input is bfloat16 or float16, outside of autocast.

    Stays quiet on:
        - Autocast, which computes losses in float32.
        - float32 inputs.
        - Losses without gradients.

    Fix:
        Cast before the loss: loss(logits.float(), target).

    Source:
        https://docs.pytorch.org/docs/stable/amp.html
    """

    title = "{subject} is computed in half precision"
    likely_cause = "The output of the model is in {observed}, and autocast is off at the loss."
    fix = "Cast before the loss: loss(logits.float(), target)."
    needs = loss_needs(*_LOSSES, numbers=False)

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, _LOSSES)
        tensor = None if call is None else given(call, "input")
        if call is None or tensor is None:
            return []
        self.triggered += 1
        if tensor.dtype not in _HALF or call.autocast is not None or call.api in self._reported:
            return []
        self._reported.add(call.api)
        return [
            self.violation(
                call,
                subject=Subject(api=call.api, module=call.module),
                symptom=Symptom.PRECISION,
                message=f"{call.api.rpartition('.')[2]} is computed in {tensor.dtype}",
                expected="float32",
                observed=tensor.dtype,
            )
        ]
