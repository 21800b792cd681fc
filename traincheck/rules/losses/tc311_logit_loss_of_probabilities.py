"""Sigmoid is applied to probabilities, by a loss or by the program."""

from __future__ import annotations

import math
from dataclasses import replace

from traincheck.readings.losses import BCE_LOGITS, F, as_loss, bounds, given, loss_needs
from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs, sampled
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import SOFTMAXES
from traincheck.schema.values import TensorSummary, tensor_summary

_SIGMOID = frozenset(
    {"torch.sigmoid", "torch.Tensor.sigmoid", f"{F}sigmoid"}
    | {"torch.nn.modules.activation.Sigmoid.forward"}
)
_SQUASH = _SIGMOID | SOFTMAXES | {f"{F}hardsigmoid"}
_ENOUGH = 16  # elements that do not all fall within [0, 1] by coincidence, after a sigmoid
_TWICE = 2  # steps in which one sigmoid maps the extremes of another to its own
_CLOSE = 1e-3


class LogitLossOfProbabilities(BuiltInRule, code="TC311", severity="error"):
    """logit-loss-of-probabilities: sigmoid comes before a loss that applies it again.

    What it checks:
        The input of binary_cross_entropy_with_logits is not confined to [0, 1]. No sigmoid is
        applied to the output of another sigmoid.

    Why it matters:
        The loss applies a sigmoid internally. It turns numbers in [0, 1] into probabilities between
        0.5 and 0.73: no sample can be classified as negative, and the loss has a floor.

    Fires on:
        - A model that ends with Sigmoid, trained with BCEWithLogitsLoss: an output of sigmoid or
          softmax of the same size, and all inputs in [0, 1].
        - A second sigmoid after such a model, before BCELoss: a sigmoid maps the extremes of the
          first output to those of the second.

    Stays quiet on:
        - Logits, even if all happen to lie in [0, 1], e.g. those of a discriminator.
        - Constant outputs of a layer that is initialized with zeros.
        - Losses that are computed without gradients.

    Fix:
        Remove the sigmoid in front of the loss.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
    """

    title = "binary_cross_entropy_with_logits is given probabilities"
    likely_cause = (
        "A sigmoid may have been applied before binary_cross_entropy_with_logits, which "
        "applies it again: all inputs lie in [0, 1]."
    )
    fix = "Pass the raw outputs of the last layer to the loss. Remove the sigmoid in front of it."
    needs = loss_needs(BCE_LOGITS) | Needs(calls=_SQUASH, stats=sampled("activation"))

    def __init__(self) -> None:
        super().__init__()
        self._squashed: set[int] = set()
        self._extremes: set[tuple[int, float, float]] = set()  # size, least, greatest
        self._twice: list[CallEvent] = []  # the first call of each step
        self._elements = 0  # number in calls in a row with all inputs in [0, 1]

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent) and event.api in _SQUASH:
            result = tensor_summary(event.result)
            return [] if result is None else self._squash(event, result)
        if isinstance(event, StepEvent):
            self._extremes.clear()
        call = as_loss(event, (BCE_LOGITS,))
        if call is None:
            return []
        self.triggered += 1
        squashed, self._squashed = self._squashed, set()
        logits = given(call, "input")
        known = bounds(logits)
        if logits is None or known is None:
            return []
        low, high = known
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
                self.code,
                call,
                "sigmoid comes before binary_cross_entropy_with_logits, which applies it again",
                expected="raw logits (not limited to 0 to 1)",
                observed=f"all of {self._elements} inputs lie between {low:.3g} and {high:.3g}",
            )
        ]

    def _squash(self, call: CallEvent, result: TensorSummary) -> list[Violation]:
        size = math.prod(result.shape)
        self._squashed.add(size)
        low, high = bounds(result) or (0.0, 0.0)
        if low == high or call.api not in _SIGMOID:
            return []
        self.triggered += 1
        if not any(_maps(before, (size, low, high)) for before in self._extremes):
            self._extremes.add((size, low, high))
            return []
        if self._twice and self._twice[-1].step == call.step:
            return []
        self._twice.append(call)
        return [self._second(call, self._twice[0], low, high)] if len(self._twice) == _TWICE else []

    def _second(self, call: CallEvent, first: CallEvent, low: float, high: float) -> Violation:
        violation = loss_violation(
            self.code,
            call,
            "sigmoid is applied to the output of a sigmoid",
            expected="one sigmoid before the loss",
            observed=f"all outputs of a second sigmoid lie between {low:.3g} and {high:.3g}",
            cause="The model ends with a sigmoid, and the loop applies another one: {observed}.",
        )
        return replace(
            violation,
            step=first.step,
            title="Sigmoid is applied twice",
            fix=(
                "Remove one of the two sigmoids, or remove both and use "
                "binary_cross_entropy_with_logits."
            ),
        )


def _maps(before: tuple[int, float, float], now: tuple[int, float, float]) -> bool:
    """Whether a sigmoid maps the extremes of one result to those of the other."""
    if before[0] != now[0]:
        return False
    return all(abs(1 / (1 + math.exp(-x)) - y) <= _CLOSE for x, y in zip(before[1:], now[1:]))
