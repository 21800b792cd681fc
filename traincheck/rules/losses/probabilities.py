"""Losses of logits that get probabilities, and the other way round."""

from __future__ import annotations

import math

from traincheck.readings.losses import (
    CROSS_ENTROPY,
    CTC,
    NLL,
    F,
    are_distributions,
    as_loss,
    bounds,
    given,
    loss_needs,
)
from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation


class CrossEntropyOfProbabilities(BuiltInRule, code="TC310", severity="error"):
    """cross-entropy-of-probabilities: softmax is applied before cross_entropy does it again.

    What it checks:
        Rows of the input of cross_entropy are not probabilities, i.e. numbers of at least zero
        whose sum is one.

    Why it matters:
        cross_entropy applies log_softmax internally. After another softmax, the loss cannot fall
        below a floor (1.461 for ten classes), gradients are small, and training is slow and poor.

    Fires on:
        - A model that ends with Softmax, trained with CrossEntropyLoss.

    Stays quiet on:
        - Logits.
        - Outputs of log_softmax, which a second log_softmax does not change.
        - Probabilities as target.
        - Losses that are computed without gradients.

    Fix:
        Remove the softmax in front of the loss. Apply it only where probabilities are shown.

    Source:
        https://github.com/Lightning-Universe/lightning-bolts/issues/654
    """

    title = "cross_entropy is given probabilities, not logits"
    likely_cause = (
        "Softmax may have been applied to the input of cross_entropy, which applies it again: "
        "from step {step} on, each row sums to one."
    )
    fix = "Pass the raw outputs of the last layer to cross_entropy. Remove the softmax."
    needs = loss_needs(CROSS_ENTROPY)

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, (CROSS_ENTROPY,))
        if call is None:
            return []
        self.triggered += 1
        logits = given(call, "input")
        if logits is None or not are_distributions(logits):
            return []
        return [
            loss_violation(
                self.code,
                call,
                "softmax comes before cross_entropy, which expects logits",
                expected="raw logits (not normalized)",
                observed=f"{logits.shape[0]} rows of nonnegative numbers, each with sum 1",
            )
        ]


_KL = f"{F}kl_div"
# The argument and the dim of classes, or None for an unknown dim
_CLASSES = {NLL: ("input", 1), CTC: ("log_probs", -1), _KL: ("input", None)}
_ROUNDING = 1e-3
_CLEARLY = 0.1  # below the logarithm: more than the rounding of half precision


class NllLossWithoutLog(BuiltInRule, code="TC312", severity="error"):
    """nll-loss-without-log: the input of nll_loss, ctc_loss or kl_div is not a log-probability.

    What it checks:
        - No element of the input of nll_loss or kl_div, or of the log_probs of ctc_loss, is above
          zero.
        - Except for kl_div, the greatest element is at least the logarithm of one divided by the
          number of classes.

    Why it matters:
        nll_loss only picks the element of the target class, and ctc_loss adds up the elements along
        an alignment. kl_div expects logarithms as input and probabilities as target. Without
        log_softmax before these losses, the loss falls without limit as outputs grow, regardless of
        the other classes. With log_softmax over another dim than the classes, samples, pixels or
        time steps compete instead of classes.

    Fires on:
        - Raw outputs, or probabilities, passed to nll_loss, ctc_loss or kl_div.
        - Outputs of log_softmax over a dim that is larger than the dim of the classes, as long as
          none of them stands out.

    Stays quiet on:
        - Outputs of log_softmax.
        - Losses that are computed without gradients.

    Fix:
        Use cross_entropy on raw outputs, or log_softmax over the dim of the classes (dim=1 before
        nll_loss, dim=-1 before ctc_loss).

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
        https://docs.pytorch.org/docs/stable/generated/torch.nn.CTCLoss.html
        https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html
    """

    title = "The input of a loss over log-probabilities is not a log-probability"
    likely_cause = "log_softmax may be missing before the loss: {observed}."
    fix = (
        "Apply log_softmax over the classes before the loss, or replace nll_loss by cross_entropy."
    )
    needs = loss_needs(*_CLASSES)

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, _CLASSES)
        if call is None:
            return []
        self.triggered += 1
        name, dim = _CLASSES[call.api]
        tensor = given(call, name)
        known = bounds(tensor)
        if tensor is None or known is None:
            return []
        high = known[1]
        loss = call.api.removeprefix(F)
        if high <= _ROUNDING:
            if dim is None:
                return []
            # Check that one class has at least the mean probability, as probabilities sum to one.
            if not tensor.shape:
                return []
            classes = tensor.shape[min(dim, len(tensor.shape) - 1)]
            least = -math.log(max(classes, 1))
            if high >= least - _CLEARLY:
                return []
            violation = loss_violation(
                self.code,
                call,
                f"the input of {loss} does not hold log-probabilities of its classes",
                expected=(
                    f"{classes} log-probabilities for each sample, one of them at least {least:.3g}"
                ),
                observed=f"the greatest element is {high:.3g}",
                cause="log_softmax runs over another dim than the classes: {observed}.",
            )
            return [violation]
        if are_distributions(tensor):
            observed = "its rows are probabilities: softmax was used in place of log_softmax"
        else:
            observed = f"its greatest element is {high:.3g}"
        return [
            loss_violation(
                self.code,
                call,
                f"the input of {loss} is not a log-probability; {observed}",
                expected="no element above zero",
                observed=observed,
            )
        ]
