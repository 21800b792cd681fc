"""Numbers of calls of torch's functions: what a mask hides, a limit changes, a softmax runs over.

A look is a function that reads one call. Its numbers are floats or tensors of one element, which
are on the device of the program. Up to 2,048 elements of a tensor are read, evenly spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, TypeAlias, TypeGuard

import torch

from traincheck.collect.tensors.reading import FLOATS, PLAIN_TYPES, detached, is_countable
from traincheck.schema.torch_api import IGNORED_LABEL, LOSSES

Number: TypeAlias = "float | torch.Tensor"
Numbers: TypeAlias = dict[str, Number]

_ELEMENTS = 2048
_SHARP = 0.999  # a weight of a softmax above it leaves nothing to the others
_EVEN = 1e-3  # relative: weights that differ by less are even
_TINY = 1e-12
_FLAGS = frozenset({torch.bool})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function, after it.

    Attributes:
        name: of the function.
        module: whether it is made within a call of a module.
        inputs: name and tensor of the inputs of the outermost model, as far as they are alive.
        earlier: what was seen of this line in the step before, by name; the look may write here.
        again: whether a call of this line has been read in this step.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    module: bool
    inputs: Sequence[tuple[str, torch.Tensor]]
    earlier: dict[str, torch.Tensor]
    again: bool = False

    def given(self, place: int, *names: str) -> Any:
        """An argument by its place or by one of its names; None if it is not given."""
        if place < len(self.args):
            return self.args[place]
        return next((self.kwargs[name] for name in names if name in self.kwargs), None)


Look: TypeAlias = Callable[[Call], "Numbers | None"]


def is_readable(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether elements of a value can be read: a plain tensor of numbers or flags."""
    if type(value) not in PLAIN_TYPES:
        return False
    return is_countable(value.view(torch.uint8) if value.dtype in _FLAGS else value)


def few(
    tensor: torch.Tensor, most: int = _ELEMENTS, *, whole: int = 0, flat: bool = True
) -> torch.Tensor:
    """Up to about ``most`` elements, evenly spread.

    Args:
        tensor: of any shape.
        most: elements that are read; a tensor that has no more is returned as it is.
        whole: the last dims, whose elements stay together.
        flat: whether a contiguous tensor is read in the order of its memory.
    """
    tensor = detached(tensor)
    count, dims = tensor.numel(), tensor.dim() - whole
    if count <= most:
        return tensor
    if flat and tensor.is_contiguous():
        rows = tensor.view(-1, *tensor.shape[dims:])
        step = -(-count // most)
        while gcd(step, len(rows)) > 1:  # else it would miss places of a dim
            step += 1
        return rows[::step]
    by_size = sorted(range(dims), key=lambda dim: tensor.shape[dim])
    for left, dim in zip(range(dims, 0, -1), by_size):
        share = (tensor.numel() / most) ** (1 / left)
        step = max(1, min(round(share), tensor.shape[dim] // 4))
        # Odd, so that it does not fall together with a pattern of two, four or eight
        tensor = tensor[(slice(None),) * dim + (slice(None, None, (step - 1) | 1),)]
    return tensor


def few_of_both(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same elements of two tensors of one shape."""
    flat = one.is_contiguous() and other.is_contiguous()
    return few(one, flat=flat), few(other, flat=flat)


def _share(flags: torch.Tensor) -> torch.Tensor:
    return flags.float().mean()


def dims_of(dim: Any, count: int) -> tuple[int, ...] | None:
    """Dims as numbers from 0; None if none is given, or a name."""
    found = (dim,) if isinstance(dim, int) else dim
    if isinstance(dim, bool) or not isinstance(found, (tuple, list)) or not found:
        return None
    if not all(type(one) is int for one in found):
        return None
    return tuple(one % count if count else 0 for one in found)


def softmax_dim(call: Call) -> int | None:
    """The dim over which a softmax runs, from 0; None if it is not known."""
    result = call.result
    dims = dims_of(call.given(1, "dim"), result.dim()) if is_readable(result) else None
    return dims[0] if dims and result.dim() else None


def _softmax(call: Call) -> Numbers | None:
    """The size of the dim, and how sharp and how even the weights are."""
    result, dim = call.result, softmax_dim(call)
    if dim is None:
        return None
    rows = few(result.movedim(dim, -1), whole=1).float()
    rows = rows.exp() if call.name.startswith("log") else rows
    top, low = rows.amax(-1), rows.amin(-1)
    return {
        "over": float(result.shape[dim]),
        "sharp": _share(top >= _SHARP),
        "even": _share(top - low <= _EVEN * top),
    }


def reduction(call: Call) -> Numbers | None:
    """The number of elements that each result is of, and whether rows of a batch are mixed."""
    given = call.given(0, "input", "self")
    if type(given) not in PLAIN_TYPES or not given.dim():
        return None
    place = 2 if call.name in _DIM_IS_THIRD else 1
    is_whole = len(call.args) <= 1 and not {"dim", "axis", "other"} & set(call.kwargs)
    dim = tuple(range(given.dim())) if is_whole else call.given(place, "dim", "axis")
    dims = dims_of(dim, given.dim())
    if dims is None:
        return None
    rows = next((len(one) for _, one in call.inputs if one.dim()), 0)
    mixes = call.module and given.requires_grad and 0 in dims and 1 < rows == given.shape[0]
    return {
        "over": float(prod(given.shape[one] for one in dims)),
        "of": float(given.numel()),
        "mixes": float(mixes),
    }


def _limit(call: Call) -> Numbers | None:
    """The share of elements that it changes."""
    given, result = call.given(0, "input", "self"), call.result
    if not (is_readable(given) and is_readable(result)) or given.shape != result.shape:
        return None
    before, after = few_of_both(given, result)
    return {"changed": _share(before != after)}


def _rectifier(call: Call) -> Numbers | None:
    """The share of results that are 0."""
    return {"zero": _share(few(call.result) == 0)} if is_readable(call.result) else None


def _fill(call: Call) -> Numbers | None:
    """The share of elements that are replaced, and the value."""
    mask, value = call.given(1, "mask"), call.given(2, "value")
    if not is_readable(mask):
        return None
    found: Numbers = {"hidden": _share(few(mask) != 0)}
    if isinstance(value, (int, float)):
        found["fill"] = float(value)
    elif is_readable(value) and value.numel() == 1:
        found["fill"] = detached(value).reshape(()).float()
    return found


def _choice(call: Call) -> Numbers | None:
    """The share of elements that are taken from the second value."""
    condition = call.given(0, "condition")
    return {"hidden": _share(few(condition) == 0)} if is_readable(condition) else None


def _kept(call: Call) -> Numbers | None:
    """The share of elements that a mask leaves out."""
    mask = call.given(1, "mask")
    if type(mask) not in PLAIN_TYPES or mask.dtype not in _FLAGS or not is_readable(mask):
        return None
    return {"hidden": _share(few(mask) == 0)}


def _attention(call: Call) -> Numbers | None:
    """The share of places that attention may not look at."""
    mask = call.given(3, "attn_mask")
    if not is_readable(mask):
        return None
    is_flag = mask.dtype in _FLAGS
    return {"hidden": _share(few(mask) == 0 if is_flag else few(mask) < -100)}  # noqa: PLR2004


def _product(call: Call) -> Numbers | None:
    """The share of elements that a factor of zeros and ones removes."""
    for one in call.args[:2]:
        if type(one) in PLAIN_TYPES and not one.requires_grad and one.numel() > 1:
            if not is_readable(one):
                continue
            seen = few(one, 256)
            zero = seen == 0
            # Read when the step ends: `hidden` counts where `binary` is 1
            is_one = seen == 1
            return {
                "hidden": _share(zero),
                "binary": ((zero | is_one).all() & is_one.any()).float(),
            }
    return None


def _singular(call: Call) -> Numbers | None:
    """The share of arguments at which the function, or its derivative, has no limit."""
    given = call.given(1 if call.name in _QUOTIENTS else 0, "other", "input", "self")
    if not is_readable(given) or given.dtype not in FLOATS or not given.requires_grad:
        return None
    return {"near": _share(few(given).abs() <= _TINY)}


def _embedding(call: Call) -> Numbers | None:
    """The rows of the table, the highest index, and the share of padding."""
    first, second = call.given(0, "input"), call.given(1, "weight")
    padding = call.given(2, "padding_idx")
    # F.embedding gets the indices first, and torch.embedding the table
    is_table = type(first) in PLAIN_TYPES and first.dtype in FLOATS
    ids, weight = (second, first) if is_table else (first, second)
    if not is_readable(ids) or type(weight) not in PLAIN_TYPES:
        return None
    seen = few(ids)
    found: Numbers = {"rows": float(len(weight)), "highest": seen.max().float()}
    if isinstance(padding, int) and (padding >= 0 or not is_table):  # torch has -1 for none
        row = padding % len(weight)
        found["padding"] = _share(seen == row)
        if is_readable(weight):
            found["size_of_padding"] = detached(weight)[row].float().abs().max()
    return found


def _dropout(call: Call) -> Numbers | None:
    """The rate, whether it is off, and whether a gradient flows through it."""
    given = call.given(0, "input")
    p, training = call.given(1, "p"), call.given(2, "training", "train")
    if not isinstance(p, (int, float)):
        p = 0.5
    is_learned = type(given) in PLAIN_TYPES and given.requires_grad
    return {"rate": float(p), "off": float(training is False), "gradient": float(is_learned)}


def _resize(call: Call) -> Numbers | None:
    """Whether values that are whole numbers are interpolated."""
    given = call.given(0, "input")
    if not is_readable(given) or given.dtype not in FLOATS:
        return None
    seen = few(given)
    blends = "nearest" not in call.name
    return {"whole": (seen == seen.round()).all().float(), "blends": float(blends)}


def _recurrent(call: Call) -> Numbers | None:
    """Whether two states of a result are equal, and whether the first states are all 0."""
    result, states = call.result, call.given(1, "hx")
    if type(result) is not tuple or len(result) != 3:  # noqa: PLR2004
        return None
    _, h, c = result
    if not (is_readable(h) and is_readable(c)) or h.shape != c.shape:
        return None
    one, other = few_of_both(h, c)
    found: Numbers = {"equal": (one == other).all().float()}
    if isinstance(states, (tuple, list)) and len(states) == 2 and all(map(is_readable, states)):  # noqa: PLR2004
        both = few_of_both(*states)
        found["zero"] = torch.stack([(one == 0).all() for one in both]).all().float()
        found["one_state"] = (both[0] == both[1]).all().float()
    return found


def spread(name: str, seen: torch.Tensor) -> Numbers:
    """Least, greatest and mean value, and deviation."""
    values = seen.float()
    low, high = values.aminmax()
    return {
        f"{name}_low": low,
        f"{name}_high": high,
        f"{name}_mean": values.mean(),
        f"{name}_deviation": values.std(correction=0),
    }


def _loss(call: Call) -> Numbers | None:
    """Values of prediction and target, and where the target is found among the inputs."""
    given, target = call.given(0, "input"), call.given(1, "target")
    if not (is_readable(given) and is_readable(target)):
        return None
    found: Numbers = {
        "gradient": float(given.requires_grad),
        "gradient_of_target": float(target.requires_grad),
        "elements": float(target.numel()),
    }
    seen = few(target)
    if call.name in _OF_CLASSES and target.dtype not in FLOATS:
        ignored = call.given(4, "ignore_index")
        ignored = ignored if isinstance(ignored, int) else IGNORED_LABEL
        counts = seen != ignored
        found["ignored"] = 1 - _share(counts)
        found["classes"] = float(given.shape[1] if given.dim() > 1 else given.shape[0])
        seen = seen.where(counts, seen.max())
    found |= spread("target", seen)
    found |= spread("prediction", few(given))
    found["whole"] = (seen == seen.round()).all().float() if seen.dtype in FLOATS else 1.0
    if given.shape == target.shape:
        one, other = few_of_both(given, target)
        found["equal"] = (one == other).all().float()
    if call.name in _OF_CLASSES and given.dim() > 1:
        rows = few(given.movedim(1, -1), whole=1).float()
        found["sums_to_1"] = ((rows.sum(-1) - 1).abs() < 1e-3).all().float() * (rows >= 0).all()  # noqa: PLR2004
    if is_readable(call.result) and call.result.numel() == 1:
        found["loss"] = detached(call.result).reshape(()).float()
    earlier = call.earlier.get("target")
    if earlier is not None and earlier.shape == seen.shape:
        found["repeats"] = (earlier == seen).all().float()
    call.earlier["target"] = seen.clone()
    return found


SHIFTS = (-1, 0, 1, 2)  # of a target against an input, along its last dim
_MOST_ROWS = 64
_MOST_PLACES = 2048
_LEAST_ROWS = 12
_LEAST_CHANGES = 4  # of a target from row to row: fewer agree by chance


def targets_in_inputs(call: Call) -> Iterator[tuple[str, Numbers]]:
    """For each input of the model: whether the target of a loss is found in it, and where.

    Yields:
        Name of the input, and its numbers. One of rows, of which each has one target:
        ``feature``, 1 where an element of each row is its target. One of sequences as long as
        the target, or one longer: for each shift, 1 where each element of the target is the one
        of the input that stands so much behind it.
    """
    target = call.given(1, "target")
    if not is_readable(target) or target.numel() < _LEAST_ROWS:
        return
    own = detached(target)
    for name, given in call.inputs:
        is_same = given.data_ptr() == target.data_ptr() and given.shape == target.shape
        if given.dim() < 2 or is_same or not is_readable(given):  # noqa: PLR2004
            continue
        rows, width = given.shape[:2]
        theirs = detached(given)[:_MOST_ROWS].flatten(1)
        if own.numel() == rows and rows >= _LEAST_ROWS and 1 < theirs.shape[1] <= _MOST_PLACES:
            mine = own.reshape(-1, 1)[:_MOST_ROWS]
            changes = (mine[1:] != mine[:-1]).sum() >= _LEAST_CHANGES
            yield name, {"feature": ((theirs == mine).all(0).any() & changes).float()}
        elif given.dim() == 2 and own.numel() in (rows * width, rows * (width - 1)) and width > 3:  # noqa: PLR2004
            mine = own.reshape(rows, -1)[:_MOST_ROWS]
            yield name, {f"shift_{shift}": _agrees(mine, theirs, shift) for shift in SHIFTS}


def _agrees(target: torch.Tensor, given: torch.Tensor, shift: int) -> torch.Tensor:
    """1 where ``target[t] == given[t + shift]`` for all t that count, and they change enough."""
    mine, theirs = target[:, max(-shift, 0) :], given[:, max(shift, 0) :]
    width = min(mine.shape[1], theirs.shape[1])
    mine, theirs = mine[:, :width], theirs[:, :width]
    counts = mine != IGNORED_LABEL
    changes = ((mine[:, 1:] != mine[:, :-1]) & counts[:, 1:]).sum() >= _LEAST_CHANGES
    return (((mine == theirs) | ~counts).all() & changes).float()


# -- results, inputs and outputs


def _even(call: Call) -> Numbers | None:
    """Whether all elements of a result are one value, and which."""
    result = call.result
    if not is_readable(result) or result.dtype not in FLOATS or result.numel() < _SOME:
        return None
    seen = few(result, 256)
    low, high = seen.aminmax()
    return {"one_value": (low == high).float(), "value": low.float()}


_ROWS, _ELEMENTS_OF_ROW = 16, 64  # that are compared with each other
_SOME = 8  # elements: fewer are one value by chance


def of_tensor(tensor: torch.Tensor, earlier: dict[str, torch.Tensor]) -> Numbers | None:
    """Numbers of an input or output of a model."""
    if not is_readable(tensor) or tensor.numel() < _SOME:
        return None
    seen = few(tensor)
    found = spread("value", seen)
    found["whole"] = (seen == seen.round()).all().float() if seen.dtype in FLOATS else 1.0
    if tensor.dim() > 1 and len(tensor) > 1:
        rows = detached(tensor)[:: -(-len(tensor) // _ROWS)].flatten(1)
        rows = rows[:, :: max(rows.shape[1] // _ELEMENTS_OF_ROW, 1) | 1]
        found["rows_alike"] = (rows == rows[:1]).all().float()
    sample = few(tensor, 128)
    before = earlier.get("value")
    if before is not None and before.shape == sample.shape:
        found["repeats"] = (before == sample).all().float()
    earlier["value"] = sample.clone()
    return found


# -- the table

_DIM_IS_THIRD = frozenset({"norm", "normalize", "vector_norm", "matrix_norm"})
_QUOTIENTS = frozenset({"div", "true_divide", "__truediv__", "divide"})
_OF_CLASSES = frozenset({"cross_entropy", "nll_loss"})
_BLENDING = "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d"
# What functions of torch.nn.functional call, with the names by which a user knows them
NAMES: Mapping[str, str] = {
    "cross_entropy_loss": "cross_entropy",
    "nll_loss_nd": "nll_loss",
    "linalg_vector_norm": "vector_norm",
    "rsub": "__rsub__",
    "dropout_": "dropout",
}
# What layers and functions of torch call for the program
OF_LAYERS = frozenset({
    "softmax", "rectifier", "blocked", "embedding", "dropout", "resize", "recurrent", "loss",
    "statistic", "table",
})  # fmt: skip
_CHOICES: Sequence[tuple[str, Look, str]] = (
    ("softmax", _softmax, "softmax log_softmax"),
    (
        "reduction",
        reduction,
        "mean sum std var max min amax amin argmax argmin norm normalize logsumexp prod median "
        "nanmean nansum vector_norm",
    ),
    ("limit", _limit, "clamp clip clamp_min clamp_max hardtanh"),
    ("rectifier", _rectifier, "relu relu_ relu6 threshold"),
    ("mask", _fill, "masked_fill masked_fill_"),
    ("choice", _choice, "where"),
    ("kept", _kept, "masked_select __getitem__"),
    ("blocked", _attention, "scaled_dot_product_attention"),
    ("factor", _product, "mul __mul__ multiply"),
    ("singular", _singular, "log log2 log10 sqrt rsqrt reciprocal div true_divide divide"),
    ("embedding", _embedding, "embedding"),
    ("dropout", _dropout, "dropout dropout2d feature_dropout alpha_dropout"),
    ("resize", _resize, _BLENDING + " upsample_nearest2d upsample_nearest1d upsample_nearest3d"),
    ("recurrent", _recurrent, "lstm"),
    ("loss", _loss, " ".join(LOSSES)),
    ("even", _even, "sub __rsub__ div sigmoid tanh softmax normalize"),
)
# Name of a function -> what is looked at, and how
LOOKS: Mapping[str, Sequence[tuple[str, Look]]] = {
    name: tuple((look, read) for look, read, names in _CHOICES if name in names.split())
    for name in {name for _, _, names in _CHOICES for name in names.split()}
}
