"""Numbers that are recorded by name, of tensors and batches: each is read by one function.

Rules judge them by fixed limits, relations by learned ones. What follows from several events is
read in losses.py and scalars.py, with these functions. A tensor may be given as its summary, as its
JSON form, or as an event of its variable; None is returned for what was not recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from traincheck.schema.events import BatchEvent, CallEvent, StateEvent
from traincheck.schema.torch_api import IGNORED_LABEL
from traincheck.schema.values import TensorSummary, number, stats_of, tensor_summary, tensors_in


class Numbers:
    """Names of numbers, as claims have them."""

    LOSS_SCALE = "loss scale"
    SMALLEST, LARGEST = "smallest", "largest"
    CLIPPED_NORM = "norm before clipping"
    GENERATED = "generated"
    GRADIENT_NORM = "gradient norm"
    NON_FINITE = "non-finite"
    LEAST_SHARE = "least share of the gradients"
    DEAD, SATURATED = "dead", "saturated"
    FLAT = "norm above zero"
    CLASSES = "classes"
    MOVED = "moved"
    END_TOKEN, MASK, PADDING = "end token", "mask", "padding"
    AHEAD, HIDDEN, LEFT_OUT = "ahead", "hidden", "left out"


IN_A_ROW = 5  # calls of a loss, at least one of which has padding
UNPADDED = "without padding"  # calls on such batches alone
SCALED_LOSS = "the loss that GradScaler has scaled"
OF_TERMS = "sum"  # a loss as a multiple of the sum of its terms
LOSS, GRADIENT = "the loss", "gradients"  # names of numbers that should be finite

_NONE: Mapping[str, float] = {}


def stats(found: Any) -> Mapping[str, float]:
    """All numbers of a tensor; empty if none were taken."""
    if isinstance(found, StateEvent):
        found = found.summary
    taken = found.stats if isinstance(found, TensorSummary) else stats_of(found)
    return taken or _NONE


def non_finite(found: Any) -> float | None:
    """How many elements are NaN or infinite."""
    return stats(found).get("nonfinite")


def norm(found: Any) -> float | None:
    """The L2 norm of the finite elements."""
    return stats(found).get("norm")


def extremes(found: Any) -> tuple[float, float] | None:
    """The smallest and the largest of the finite elements."""
    known = stats(found)
    low, high = known.get("min"), known.get("max")
    return None if low is None or high is None else (low, high)


def row_sums(found: Any) -> tuple[float | None, float | None]:
    """The smallest and the largest sum over the last dim."""
    known = stats(found)
    return known.get("row_sum_min"), known.get("row_sum_max")


def zeros(found: Any) -> float | None:
    """The share of elements that are zero; of a boolean mask, of those that are False."""
    return stats(found).get("zeros")


def dead(found: Any) -> float | None:
    """The share of units that are off for a whole batch; of a weight, of its rows or filters."""
    return stats(found).get("dead")


def saturated(found: Any) -> float | None:
    """The share of elements at a limit of their activation."""
    return stats(found).get("saturated")


def moved(found: Any) -> float | None:
    """How far an update moved the element of a parameter that it moved farthest."""
    return stats(found).get("moved")


def ahead(found: Any) -> float | None:
    """By how many positions labels are ahead of the tokens of their batch."""
    return stats(found).get("shifted")


def hidden(found: Any) -> float | None:
    """The share of weights of attention to later positions that are next to nothing."""
    return stats(found).get("hidden")


def inverted(found: Any) -> float | None:
    """Whether a mask over keys shows the padding of their tokens and nothing else."""
    return stats(found).get("inverted")


def ignored(found: Any) -> float | None:
    """The share of labels that are -100."""
    return stats(found).get("ignored")


def ignored_label(loss: CallEvent) -> Any:
    """The label that a loss over classes leaves out."""
    return loss.args.get("ignore_index", IGNORED_LABEL)


def clipped_norm(call: CallEvent) -> float | None:
    """The norm of the gradients that a call of clip_grad_norm_ found."""
    return number(call.result)


def clip_limit(call: CallEvent) -> float | None:
    """The limit of a call that clips gradients by their norm or by value; None if infinite."""
    return number(call.args.get("max_norm", call.args.get("clip_value")))


def loss_of(call: CallEvent) -> float | None:
    """The value of a loss, from the call that runs backward on it; NaN if it is not finite."""
    for summary in tensors_in(call.args).values():
        return value_of(summary)
    return None


def value_of(result: Any) -> float | None:
    """The number in a 0-dim tensor; NaN if it is not finite."""
    summary = result if isinstance(result, TensorSummary) else tensor_summary(result)
    value: Any = None if summary is None else summary.value
    if isinstance(value, str):  # JSON holds non-finite values as text
        return math.nan
    return float(value) if isinstance(value, (int, float)) else None


def padding(batch: BatchEvent) -> float | None:
    """The share of the positions of a batch that its mask excludes."""
    share: float | None = batch.tokens.get("padding")
    return share


def attended_padding(batch: BatchEvent) -> int | None:
    """In how many rows of a batch the mask includes padding."""
    rows: int | None = batch.tokens.get("attended_padding")
    return rows


def lost_end(batch: BatchEvent) -> int | None:
    """The token that ends most rows of a batch and that all its labels leave out."""
    token: int | None = batch.tokens.get("lost_end")
    return token
