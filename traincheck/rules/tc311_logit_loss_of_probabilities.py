"""TC311: binary_cross_entropy_with_logits is given probabilities."""

from __future__ import annotations

import math

from traincheck.rules._losses import (
    BCE_LOGITS,
    F,
    as_loss,
    given,
    loss_needs,
    loss_violation,
    number,
)
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import CheckInfo, Violation
from traincheck.schema.values import TensorSummary, tensor_summary

_SQUASH = frozenset(
    {"torch.sigmoid", "torch.softmax", f"{F}sigmoid", f"{F}softmax", f"{F}hardsigmoid"}
    | {"torch.nn.modules.activation.Sigmoid.forward"}
)
_ENOUGH = 16  # elements of a batch of which none lies outside by chance, after a sigmoid


class LogitLossOfProbabilities:
    """TC311 logit-loss-of-probabilities: sigmoid comes before a loss that applies it again.

    What it checks:
        The input of binary_cross_entropy_with_logits is not confined to [0, 1].

    Why it matters:
        The loss applies a sigmoid by itself. Of numbers in [0, 1] it makes probabilities between
        0.5 and 0.73: no sample can be called negative, and the loss has a floor.

    Fires on:
        A model that ends with Sigmoid, trained with BCEWithLogitsLoss: an output of sigmoid or
        softmax of the same size, and all inputs in [0, 1].

    Stays quiet on:
        Logits, also when all happen to lie in [0, 1], as those of a discriminator may; constant
        outputs of a layer that begins with zeros; losses that are computed without gradients.

    Fix:
        Remove the sigmoid in front of the loss.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
    """

    info = CheckInfo(
        check_id="TC311",
        kind="rule",
        code="TC311",
        severity="error",
        title="binary_cross_entropy_with_logits is given probabilities",
        likely_cause=(
            "A sigmoid was applied before binary_cross_entropy_with_logits, which applies it "
            "again: all inputs lie in [0, 1]."
        ),
        fix="Pass the raw outputs of the last layer: remove the sigmoid in front of the loss.",
    )
    needs = loss_needs(BCE_LOGITS) | Needs(calls=_SQUASH)

    def monitor(self) -> Squashed:
        return Squashed()


class Squashed:
    """Remembers the sizes that sigmoid gave since the last loss."""

    def __init__(self) -> None:
        self.triggered = 0
        self._squashed: set[int] = set()
        self._elements = 0  # of calls in a row with all inputs in [0, 1]

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent) and event.api in _SQUASH:
            result = tensor_summary(event.result)
            if result is not None:
                self._squashed.add(math.prod(result.shape))
            return []
        call = as_loss(event, (BCE_LOGITS,))
        if call is None:
            return []
        self.triggered += 1
        squashed, self._squashed = self._squashed, set()
        logits = given(call, "input")
        return [] if logits is None else self._judge(call, logits, squashed)

    def finish(self) -> list[Violation]:
        return []

    def _judge(self, call: CallEvent, logits: TensorSummary, squashed: set[int]) -> list[Violation]:
        low, high = number(logits, "min"), number(logits, "max")
        if low is None or high is None:
            return []
        if low < 0 or high > 1:
            self._elements = 0
            return []
        if low == high:
            return []
        size = math.prod(logits.shape)
        self._elements += size
        if size not in squashed or self._elements < _ENOUGH:
            return []
        return [
            loss_violation(
                "TC311",
                call,
                "sigmoid comes before binary_cross_entropy_with_logits, which applies its own",
                expected="logits, of any sign and size",
                observed=f"all of {self._elements} inputs lie between {low:.3g} and {high:.3g}",
            )
        ]
