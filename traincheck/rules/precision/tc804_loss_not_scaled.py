"""Training under autocast to float16 without loss scaling."""

from __future__ import annotations

from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

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

    def __init__(self) -> None:
        super().__init__()
        self._is_scaled = False
        self._root: CallEvent | None = None  # of this step
        self._first: CallEvent | None = None

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent):
            if (event.family or event.api) in _SCALER:
                self._is_scaled = True
            elif event.root and event.autocast == "float16" and event.grad_enabled:
                self._root = event
        elif isinstance(event, StepEvent):
            return self._judge(event)
        return []

    def _judge(self, step: StepEvent) -> list[Violation]:
        root, self._root = self._root, None
        if step.counters.get("scaler_step", 0):
            self._is_scaled = True
        if root is None or not step.counters.get("optimizer_step", 0) or not step.recorded:
            return []
        self.triggered += 1
        first, self._first = self._first, root
        if self._is_scaled or first is None:
            return []
        return [
            Violation(
                check_id=self.code,
                step=first.step,
                rank=first.rank,
                stage="train",
                subject=Subject(module=first.module),
                symptom=Symptom.PRECISION,
                message=f"{first.module} is trained in float16 autocast with an unscaled loss",
                expected="a GradScaler between loss and backward()",
                observed="no call of a GradScaler",
                evidence=(first, root, step),
            )
        ]
