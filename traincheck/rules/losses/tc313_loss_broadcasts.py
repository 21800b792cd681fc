"""A regression loss pairs every prediction with every target."""

from __future__ import annotations

import math

from traincheck.readings.losses import as_loss, given, loss_needs
from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import losses

LOSSES = tuple(sorted(losses("value")))


class LossBroadcasts(BuiltInRule, code="TC313", severity="error"):
    """loss-broadcasts: input and target of a loss broadcast to all pairs of samples.

    What it checks:
        Input and target of mse_loss, l1_loss, smooth_l1_loss and huber_loss do not broadcast to a
        shape larger than both.

    Why it matters:
        With shapes (N, 1) and (N,) the loss compares each prediction with each target. The best
        answer is then the mean of all targets, for every sample.

    Fires on:
        - Such a pair of shapes.
        - Input (N,) and target (N, N), if the target was broadcast from (N,) and (N, 1) before.

    Stays quiet on:
        - Equal shapes.
        - One number, or one row, as target of all predictions, or as prediction of other numbers.
        - Losses without gradients.

    Fix:
        Give both the same shape: prediction.squeeze(-1) or target.unsqueeze(-1).

    Source:
        https://github.com/pytorch/pytorch/issues/16045
    """

    title = "{subject} compares each prediction with each target"
    likely_cause = (
        "{observed}: the shapes broadcast, so the loss is taken over all pairs of samples."
    )
    fix = "Give both the same shape: squeeze(-1) the prediction or unsqueeze(-1) the target."
    needs = loss_needs(*LOSSES, numbers=False)

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, LOSSES)
        if call is None:
            return []
        prediction, target = given(call, "input"), given(call, "target")
        if prediction is None or target is None:
            return []
        self.triggered += 1
        if prediction.shape == target.shape:
            return []
        pairs = _broadcast(prediction.shape, target.shape)
        is_more = pairs > max(math.prod(prediction.shape), math.prod(target.shape))
        if not is_more and not _is_square(prediction.shape, target.shape):
            return []
        name = call.api.rpartition(".")[2]
        observed = f"input {list(prediction.shape)}, target {list(target.shape)}"
        return [
            loss_violation(
                self.code,
                call,
                f"shapes of input and target of {name} broadcast to {pairs} pairs; {observed}",
                expected="the same shape for both",
                observed=observed,
            )
        ]


def _is_square(prediction: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether there is a target for each pair of samples, e.g. because the target was broadcast."""
    return len(prediction) == 1 and prediction[0] > 1 and target == prediction * 2


def _broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Number of elements of the shape that both broadcast to."""
    count = max(len(first), len(second))
    a, b = (1,) * (count - len(first)) + first, (1,) * (count - len(second)) + second
    return math.prod(max(x, y) for x, y in zip(a, b))
