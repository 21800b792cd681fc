"""Numbers of calls of torch's functions: what is broadcast, which dims are left, which limits hold.

These looks join those of `operation_looks` in one table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from traincheck.collect.tensors.operation_looks import LOOKS as FIRST_LOOKS
from traincheck.collect.tensors.operation_looks import (
    Call,
    Look,
    Numbers,
    dims_of,
    few,
    is_readable,
)
from traincheck.collect.tensors.reading import FLOATS, PLAIN_TYPES, detached
from traincheck.schema.torch_api import IGNORED_LABEL

_FAR_BELOW = -50.0  # a score that is set below it gets no weight
_STEPS_BACK = 4  # from an argument to the reduction that it is a multiple of
_REDUCTIONS = frozenset({"SumBackward0", "MeanBackward0"})
# Their results are one number if their argument is
_PASSING = frozenset({"NegBackward0", "MulBackward0", "DivBackward0"})


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN_TYPES and value.layout == torch.strided


def _broadcast(call: Call) -> Numbers | None:
    """Of which arguments of an arithmetic function elements are used several times."""
    pair = [one for one in call.args[:2] if _is_plain(one)]
    if len(pair) < 2 or pair[0].shape == pair[1].shape:  # noqa: PLR2004
        return None
    small, large = sorted(pair, key=lambda one: (one.numel(), one.dim()))
    size = len(small) if small.dim() == 1 else 0
    is_vector = size > 1 and not (small.is_leaf and small.requires_grad)
    result = call.result
    found: Numbers = {}
    if _is_plain(result) and result.requires_grad:  # else it is not known what made a number
        found |= {
            "elements": float(result.numel()),
            "of_all_rows": float(_is_of_all_rows(small, large)),
        }
    return found | {
        "size": float(size),
        "square": float(is_vector and tuple(large.shape) == (size, size)),
        "outer": float(is_vector and tuple(large.shape) == (size, 1)),
    }


def _is_of_all_rows(number: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one number is the sum or mean over as many rows as another tensor has."""
    if number.dim() or not number.requires_grad or not other.dim() or len(other) == 1:
        return False
    node: Any = number.grad_fn
    for _ in range(_STEPS_BACK):
        if node is None:
            return False
        name = node.name()
        if name in _REDUCTIONS:
            shape: Sequence[int] = getattr(node, "_saved_self_sym_sizes", ())
            return len(shape) > 1 and shape[0] == len(other)
        before = [one for one, _ in node.next_functions if one is not None]
        if name not in _PASSING or len(before) != 1:
            return False
        node = before[0]
    return False


def _norm(call: Call) -> Numbers | None:
    """Over which dims a norm runs."""
    given = call.given(0, "input", "self", "x")
    if not _is_plain(given) or given.dim() < 2:  # noqa: PLR2004
        return None
    dims = dims_of(call.given(2, "dim"), given.dim())
    if dims is None:
        return None
    left = set(range(1, given.dim())) - set(dims)
    return {
        "dims": float(given.dim()),
        "dim": float(dims[0]),
        "one": float(len(dims) == 1),
        "last": float(given.dim() - 1 in dims),
        "first": float(0 in dims),
        "left": float(len(left)),
    }


def _mask_of_rows(call: Call) -> Numbers | None:
    """The share of rows of the last dim of which a mask hides all, and of which it hides a part."""
    given, mask, value = call.given(0, "input"), call.given(1, "mask"), call.given(2, "value")
    if not isinstance(value, (int, float)) or value > _FAR_BELOW or not is_readable(mask):
        return None
    if not _is_plain(given) or given.dim() < 2 or given.shape[-1] == 1 or not mask.numel():  # noqa: PLR2004
        return None
    if not mask.dim() or mask.shape[-1] not in (1, given.shape[-1]):
        return None
    rows = few(mask, whole=1) != 0
    whole, some = rows.all(-1), rows.any(-1)
    return {"whole": whole.float().mean(), "part": (some & ~whole).float().mean()}


def _limit_of_dtype(call: Call) -> Numbers | None:
    """Limits that are 1 or 0 in the dtype of what is limited."""
    given = call.given(0, "input", "self")
    if type(given) not in PLAIN_TYPES or given.dtype not in FLOATS:
        return None
    limits = call.given(1, "min", "max"), call.given(2, "max")
    numbers = [float(one) for one in limits if isinstance(one, (int, float))]
    if not numbers:
        return None
    found: Numbers = {"is_one": 0.0, "is_zero": 0.0}
    for number in numbers:
        rounded = _rounded(number, given.dtype)
        if rounded == 1 != number:
            found |= {"is_one": 1.0, "below": 1 - number}
        elif rounded == 0 != number:
            found |= {"is_zero": 1.0, "limit": number}
    return found


def _rounded(number: float, dtype: torch.dtype) -> float:
    """A number as a dtype has it."""
    return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()


def _table(call: Call) -> Numbers | None:
    """Whether the table of an embedding has been written since the call before, in this step."""
    first, second = call.given(0, "input"), call.given(1, "weight")
    is_first = type(first) in PLAIN_TYPES and first.dtype in FLOATS
    table = first if is_first else second
    if not is_readable(table):
        return None
    if not call.again:
        call.earlier.clear()  # of the step before
    sample, name = few(table, 128), str(table.data_ptr())
    before = call.earlier.get(name)
    call.earlier[name] = sample.clone()
    if before is None or before.shape != sample.shape:
        return {}
    return {"written": (before != sample).any().float()}


# -- inputs of a model


def of_labels(labels: torch.Tensor, mask: torch.Tensor) -> Numbers | None:
    """Which labels count where a mask of the same shape is 0, and where it begins to be 1."""
    if not (is_readable(labels) and is_readable(mask)) or labels.dtype in FLOATS:
        return None
    if labels.dim() != 2 or labels.shape != mask.shape or not labels.numel():  # noqa: PLR2004
        return None
    labels, mask = detached(labels)[:_ROWS, :_PLACES], detached(mask)[:_ROWS, :_PLACES]
    seen, counts = mask != 0, labels != IGNORED_LABEL
    first = counts.gather(1, seen.int().argmax(1, keepdim=True)).squeeze(1)
    has_some = seen.any(1)
    return {
        "binary": ((mask == 0) | (mask == 1)).all().float(),
        "counted": (counts & ~seen).sum().float() / (~seen).sum(),
        "first_counts": (first & has_some).sum().float() / has_some.sum(),
    }


_ROWS, _PLACES = 64, 1024  # of labels that are read

# -- the table

_CHOICES: Sequence[tuple[str, Look, str]] = (
    ("broadcast", _broadcast, "sub __rsub__ add mul div true_divide sub_ add_ mul_ div_"),
    ("norm", _norm, "norm vector_norm"),
    ("mask of rows", _mask_of_rows, "masked_fill masked_fill_"),
    ("limit of a dtype", _limit_of_dtype, "clamp clip clamp_min clamp_max clamp_"),
    ("table", _table, "embedding"),
)
# Name of a function -> what is looked at, and how
LOOKS: Mapping[str, Sequence[tuple[str, Look]]] = {
    name: (
        *FIRST_LOOKS.get(name, ()),
        *((look, read) for look, read, names in _CHOICES if name in names.split()),
    )
    for name in {*FIRST_LOOKS, *(name for *_, names in _CHOICES for name in names.split())}
}
