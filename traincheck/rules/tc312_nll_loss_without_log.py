"""TC312: nll_loss is given something else than log-probabilities."""

from __future__ import annotations

from traincheck.rules._losses import (
    NLL,
    are_distributions,
    as_loss,
    given,
    loss_needs,
    loss_violation,
    number,
)
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Violation

_ROUNDING = 1e-3


class NllLossWithoutLog:
    """TC312 nll-loss-without-log: the input of nll_loss is no log-probability.

    What it checks:
        No element of the input of nll_loss is above zero.

    Why it matters:
        nll_loss only picks the element of the target class. Without log_softmax before it, the loss
        falls without limit as outputs grow, whatever the other classes do.

    Fires on:
        Raw outputs, or probabilities, passed to nll_loss.

    Stays quiet on:
        Outputs of log_softmax; losses that are computed without gradients.

    Fix:
        Use cross_entropy on raw outputs, or log_softmax before nll_loss.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
    """

    info = CheckInfo(
        check_id="TC312",
        kind="rule",
        code="TC312",
        severity="error",
        title="nll_loss is given no log-probabilities",
        likely_cause="log_softmax is missing before nll_loss: {observed}.",
        fix="Use cross_entropy on the raw outputs, or apply log_softmax before nll_loss.",
    )
    needs = loss_needs(NLL)

    def monitor(self) -> Positive:
        return Positive()


class Positive:
    """Looks for elements above zero."""

    def __init__(self) -> None:
        self.triggered = 0

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, (NLL,))
        if call is None:
            return []
        self.triggered += 1
        tensor = given(call, "input")
        high = number(tensor, "max")
        if high is None or high <= _ROUNDING:
            return []
        if are_distributions(tensor):
            observed = "its rows are probabilities, softmax was used in place of log_softmax"
        else:
            observed = f"its greatest element is {high:.3g}"
        return [
            loss_violation(
                "TC312",
                call,
                f"the input of nll_loss is no log-probability; {observed}",
                expected="no element above zero",
                observed=observed,
            )
        ]

    def finish(self) -> list[Violation]:
        return []
