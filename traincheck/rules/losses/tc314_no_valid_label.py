"""The loss ignores every label of a batch."""

from __future__ import annotations

import math

from traincheck.readings.losses import CROSS_ENTROPY, NLL, as_loss, given, loss_needs, number
from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.rules.shared.numbers import loss_of
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import IGNORED_LABEL, Families


class NoValidLabel(BuiltInRule, code="TC314", severity="error"):
    """no-valid-label: all labels equal ignore_index.

    What it checks:
        Each call of cross_entropy and nll_loss has at least one label that is not ignored.

    Why it matters:
        The mean over no label is NaN. One such batch turns all parameters into NaN.

    Fires on:
        - A batch whose labels are all ignore_index (-100), with reduction="mean". Every label was
          masked as prompt, or truncated away.
        - The same with reduction="sum", if backward() then starts from NaN because the sum was
          divided by the number of valid labels.

    Stays quiet on:
        - Batches with a valid label.
        - reduction="sum" and "none", if the loss is finite.
        - Losses without gradients.

    Fix:
        Remove such samples from the data, or skip such batches.

    Source:
        https://github.com/pytorch/pytorch/issues/75181
    """

    title = "{subject} is given a batch without a valid label"
    likely_cause = (
        "All labels of the batch at step {step} are ignore_index, e.g. as they are masked as "
        "prompt or padding, or truncated away. The mean over no label is NaN."
    )
    fix = "Drop samples without labels from the data, or skip such batches."
    needs = loss_needs(CROSS_ENTROPY, NLL) | Needs(calls=frozenset({Families.BACKWARD}))

    def __init__(self) -> None:
        super().__init__()
        self._sum: CallEvent | None = (
            None  # call without valid labels, until backward() shows its effect
        )

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent) and (event.family or event.api) == Families.BACKWARD:
            call, self._sum = self._sum, None
            loss = loss_of(event)
            return [self._violation(call)] if call and loss is not None and math.isnan(loss) else []
        if isinstance(event, StepEvent):
            self._sum = None
        call = as_loss(event, (CROSS_ENTROPY, NLL))
        if call is None:
            return []
        if call.args.get("reduction", "mean") == "mean":
            return [self._violation(call)] if self._is_of_none(call) else []
        self._sum = call if self._is_of_none(call) else None
        return []

    def _is_of_none(self, call: CallEvent) -> bool:
        target = given(call, "target")
        low, high = number(target, "min"), number(target, "max")
        if target is None or "int" not in target.dtype or low is None or high is None:
            return False
        self.triggered += 1
        return bool(low == high == call.args.get("ignore_index", IGNORED_LABEL))

    def _violation(self, call: CallEvent) -> Violation:
        ignored = call.args.get("ignore_index", IGNORED_LABEL)
        target = given(call, "target")
        shape = list(target.shape) if target else "the"
        return loss_violation(
            self.code,
            call,
            f"all labels of a batch are {ignored}, which the loss ignores",
            expected="at least one label that is not ignored",
            observed=f"{shape} labels, all {ignored}",
        )
