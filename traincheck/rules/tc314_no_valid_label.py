"""TC314: every label of a batch is one that the loss leaves out."""

from __future__ import annotations

from traincheck.rules._losses import (
    CROSS_ENTROPY,
    IGNORED,
    NLL,
    as_loss,
    given,
    loss_needs,
    loss_violation,
    number,
)
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Violation


class NoValidLabel:
    """TC314 no-valid-label: all labels equal ignore_index.

    What it checks:
        At least one label of each call of cross_entropy and nll_loss counts.

    Why it matters:
        The mean over no label is NaN. One such batch turns all parameters into NaN.

    Fires on:
        A batch whose labels are all ignore_index (-100), with reduction="mean": everything was
        masked as prompt, or truncated away.

    Stays quiet on:
        Batches with a valid label; reduction="sum" and "none"; losses without gradients.

    Fix:
        Leave such samples out of the data, or skip such batches.

    Source:
        https://github.com/pytorch/pytorch/issues/75181
    """

    info = CheckInfo(
        check_id="TC314",
        kind="rule",
        code="TC314",
        severity="error",
        title="{subject} is given a batch without a valid label",
        likely_cause=(
            "All labels of the batch at step {step} are ignore_index: masked as prompt or padding, "
            "or truncated away. The mean over none is NaN."
        ),
        fix="Drop samples without labels from the data, or skip such a batch.",
    )
    needs = loss_needs(CROSS_ENTROPY, NLL)

    def monitor(self) -> Labels:
        return Labels()


class Labels:
    """Looks at the least and the greatest label."""

    def __init__(self) -> None:
        self.triggered = 0

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, (CROSS_ENTROPY, NLL))
        if call is None or call.args.get("reduction", "mean") != "mean":
            return []
        target = given(call, "target")
        low, high = number(target, "min"), number(target, "max")
        ignored = call.args.get("ignore_index", IGNORED)
        if target is None or "int" not in target.dtype or low is None or high is None:
            return []
        self.triggered += 1
        if not low == high == ignored:
            return []
        return [
            loss_violation(
                "TC314",
                call,
                f"all labels of a batch are {ignored}, which the loss leaves out",
                expected="at least one label that counts",
                observed=f"{list(target.shape)} labels, all {ignored}",
            )
        ]

    def finish(self) -> list[Violation]:
        return []
