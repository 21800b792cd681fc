"""Calls of loss functions and their arguments."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.values import TensorSummary, tensor_summary

F = "torch.nn.functional."
CROSS_ENTROPY = f"{F}cross_entropy"
NLL = f"{F}nll_loss"
OVER_CLASSES = frozenset({CROSS_ENTROPY, NLL})
CTC = f"{F}ctc_loss"
BCE = f"{F}binary_cross_entropy"
BCE_LOGITS = f"{F}binary_cross_entropy_with_logits"
# Losses of an input and a target: the mean, or the sum, of one term for each element or label.
LOSSES = frozenset(
    F + name
    for name in (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss",
        "kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss", "soft_margin_loss",
    )
)  # fmt: skip
# How far a sum of probabilities may be from one, by dtype; float32 and float64 else.
_ROUNDING = {"float16": 5e-3, "bfloat16": 3e-2}
_EXACT = 1e-3


def loss_needs(*apis: str, numbers: bool = True) -> Needs:
    """Calls of these losses, and numbers of their arguments."""
    names = frozenset(apis)
    return Needs(calls=names, kinds=frozenset({"step"}), stats=names if numbers else frozenset())


def as_loss(event: Event, apis: Iterable[str]) -> CallEvent | None:
    """The event, if it is a call of one of ``apis`` through which training may backpropagate."""
    if not isinstance(event, CallEvent) or event.api not in apis:
        return None
    return event if event.grad_enabled and event.exception is None else None


def given(call: CallEvent, name: str) -> TensorSummary | None:
    """A tensor argument."""
    return tensor_summary(call.args.get(name))


def number(tensor: TensorSummary | None, name: str) -> float | None:
    """A number of a tensor; None if it was not taken, or not all elements are finite."""
    if tensor is None or tensor.stats is None or tensor.stats.get("nonfinite"):
        return None
    return tensor.stats.get(name)


def are_next_tokens(tensor: TensorSummary | None) -> bool:
    """Whether these labels are known to be the next tokens of a model's input."""
    return number(tensor, "shifted") == 1


def are_distributions(tensor: TensorSummary | None) -> bool:
    """Whether the rows of a matrix are probabilities that sum to one."""
    if tensor is None or len(tensor.shape) != 2 or tensor.shape[1] < 2:  # noqa: PLR2004
        return False
    least, low, high = (number(tensor, n) for n in ("min", "row_sum_min", "row_sum_max"))
    if least is None or low is None or high is None or least < 0:
        return False
    slack = _ROUNDING.get(tensor.dtype, _EXACT)
    return abs(low - 1) <= slack and abs(high - 1) <= slack
