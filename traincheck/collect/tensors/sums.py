"""Sums over the elements of tensors.

On the CPU, sums are numbers at once. On a device they stay there, as one small tensor, until
`read_sums` reads all of them in one copy at the end of a step.

Sums and moments are taken in double precision, in pieces of bounded length; where the device has
none, in single precision, of elements in units of the largest one. Moments are about a shift near
the mean, and `centred` corrects them, so they do not cancel. Squares of many elements are summed in
single precision within short rows, and the sums of these in double precision.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, cast

import orjson
import torch

from traincheck.collect.tensors.devices import KIND, host
from traincheck.collect.tensors.reading import (
    FLOATS,
    FUNC,
    HALF,
    LOW,
    PLAIN_TYPES,
    as_plain,
    detached,
    is_countable,
    is_foreign,
    is_included,
    local_of,
    modes,
)
from traincheck.handlers import give_back
from traincheck.schema.metrics.sums import (
    ABSOLUTES,
    COLUMNS,
    COUNT,
    MAXIMUM,
    MEAN,
    MINIMUM,
    NONFINITE,
    SQUARES,
    SUM,
    ZEROS,
    Row,
    centred,
    scaled,
)

# Sums of one tensor; on a device a tensor in the order of COLUMNS and _MORE, NaN: not taken.
Taken: TypeAlias = "Row | torch.Tensor"
_MORE = 2  # the shift that moments are about, and the unit of the elements
_SHIFT, _UNIT = len(COLUMNS), len(COLUMNS) + 1
_ROW = 1 << 8  # elements whose squares are summed in single precision
_MANY = 1 << 14  # elements from which rows cost less than double precision
_WIDE_PIECE = 1 << 16  # elements that are in double precision at a time
_LARGE_PIECE = 1 << 22  # the same on a device
_RARE = frozenset({"zeros", "absolutes", "m2"})
_TINY = 1e-30  # sums of squares below it may have lost elements to underflow


def why_not(tensor: torch.Tensor) -> str | None:
    """Why no sums of a tensor are taken; None if they can be."""
    if is_foreign(type(tensor)):
        return f"a {type(tensor).__name__} that cannot be read"
    if tensor.dtype not in FLOATS:
        return f"dtype {str(tensor.dtype).removeprefix('torch.')}"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return "sparse or nested"
    if tensor.numel() == 0:
        return "no elements"
    if not is_countable(tensor):
        return f"a {type(tensor).__name__} that cannot be read"
    return None


def local_part(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The part of a distributed tensor that is in this process.

    Returns:
        The part, and how many ranks hold a copy of it; 0 where it is the whole tensor.
    """
    if type(tensor) in PLAIN_TYPES:
        return tensor, 0
    local, whole = local_of(tensor), cast("Any", tensor)
    if local is None:
        return as_plain(tensor), 0
    if not any(placement.is_shard() for placement in getattr(whole, "placements", ())):
        return local, 0
    copies = (whole.device_mesh.size(d) for d, p in enumerate(whole.placements) if p.is_replicate())
    return local, math.prod(copies)


def sums_of(tensor: torch.Tensor, columns: frozenset[str]) -> Taken:
    """The sums of a readable tensor.

    Args:
        tensor: one for which `why_not` gives None.
        columns: names among COLUMNS; the counts are always taken.
    """
    flat = detached(tensor)
    return _on_cpu(flat, columns) if flat.is_cpu else _on_device(flat, columns)


def is_hidden() -> bool:
    """Whether tensors cannot be read now, because other code sees each operation."""
    return bool(modes()) or is_included(FUNC)


def _on_cpu(x: torch.Tensor, columns: frozenset[str]) -> Row:
    row: Row = [None] * len(COLUMNS)
    row[COUNT] = x.numel()
    if "squares" in columns:
        row[SQUARES] = _squares(x)
    if _order(columns) and x.numel() <= _WIDE_PIECE:
        x = x.double()  # once
    if "sum" in columns:
        row[SUM] = float(_total(x).item())
    if "minimum" in columns or "maximum" in columns:
        low, high = torch.aminmax(x)
        row[MINIMUM], row[MAXIMUM] = float(low.item()), float(high.item())
    taken = [number for number in row[SUM:ZEROS] if number is not None]
    if not all(map(math.isfinite, taken)):
        # Sums of finite elements may overflow, too: those of all of them in double precision
        finite = x[torch.isfinite(x)].double()
        row[NONFINITE] = x.numel() - finite.numel()
        if "sum" in columns:
            row[SUM] = float(finite.sum().item())
        if "squares" in columns:
            row[SQUARES] = float(torch.dot(finite, finite).item())
        if "minimum" in columns or "maximum" in columns:
            is_any = finite.numel() > 0
            row[MINIMUM] = float(finite.min().item()) if is_any else None
            row[MAXIMUM] = float(finite.max().item()) if is_any else None
        _further(finite, row, columns)
    else:
        row[NONFINITE] = 0 if taken else None  # not known
        if not columns.isdisjoint(_RARE):
            _further(x, row, columns)
    return row


def wide_pieces(
    x: torch.Tensor, shift: torch.Tensor | float | None = None, dtype: torch.dtype = torch.float64
) -> Iterator[torch.Tensor]:
    """The elements less ``shift`` in a wide type, some at a time; the next overwrite them."""
    flat = x.view(-1) if x.is_contiguous() else x.reshape(-1)
    size = _WIDE_PIECE if x.is_cpu else _LARGE_PIECE
    if flat.numel() <= size:
        wide = flat.to(dtype)
        yield wide if shift is None else wide - shift
        return
    own = torch.empty(size, dtype=dtype, device=x.device)  # new memory costs more than the sums
    for start in range(0, flat.numel(), size):
        piece = flat[start : start + size]
        wide = own[: piece.numel()].copy_(piece)
        yield wide if shift is None else wide.sub_(shift)


def _total(x: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The sum in a wide type."""
    if x.numel() <= _WIDE_PIECE:
        return x.sum(dtype=dtype)
    first, *rest = (piece.sum() for piece in wide_pieces(x, dtype=dtype))
    return sum(rest, first)


def powers_about(
    x: torch.Tensor, shift: torch.Tensor | float, most: int, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    """Sums of the first to the ``most``-th powers of the differences of elements to ``shift``.

    Args:
        x: the elements.
        shift: a number, or a tensor of ``dtype``.
        most: 2 or 4.
        dtype: a wide type of the device.
    """
    found: list[torch.Tensor] = []
    squares: torch.Tensor | None = None
    for offset in wide_pieces(x, shift, dtype):
        sums = [offset.sum(), _product(offset, offset)]
        if most > len(sums):
            if squares is None or squares.shape != offset.shape:
                squares = torch.empty_like(offset)
            torch.mul(offset, offset, out=squares)
            sums += [_product(squares, offset), _product(squares, squares)]
        found = [one + more for one, more in zip(found, sums)] if found else sums
    return found


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    # On a device the library that takes a dot product may allocate memory
    return torch.dot(one, other) if one.is_cpu else (one * other).sum()


def _squares(x: torch.Tensor) -> float:
    """The sum of squares: of short rows in single precision, of these in double precision."""
    flat, count = (x.view(-1) if x.is_contiguous() else x.reshape(-1)), x.numel()
    if count > _MANY:
        if flat.dtype in HALF:
            flat = flat.float()
        whole = count - count % _ROW
        norms = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1).double()
        total = float(torch.dot(norms, norms).item())
        if whole < count:
            total += float(torch.dot(flat[whole:], flat[whole:]).item())
    else:
        if flat.dtype in HALF or count > _ROW:
            flat = flat.double()
        total = float(torch.dot(flat, flat).item())
    if total < _TINY and flat.dtype is not torch.float64:
        return sum(float(torch.dot(wide, wide).item()) for wide in wide_pieces(x))
    return total


def _further(x: torch.Tensor, row: Row, columns: frozenset[str]) -> None:
    """The sums that few ask for. x: its elements are finite."""
    if "zeros" in columns:
        row[ZEROS] = x.numel() - int(torch.count_nonzero(x).item())
    if "absolutes" in columns:
        row[ABSOLUTES] = float(x.abs().sum(dtype=torch.float64).item())
    if most := _order(columns):
        count = x.numel()
        shift = float(row[SUM] or 0.0) / count if count else 0.0
        powers = powers_about(x, shift, most)
        centred(row, shift, [float(one.item()) for one in powers])


def _order(columns: frozenset[str]) -> int:
    """Up to which power the deviations are summed."""
    return 0 if "m2" not in columns else 4 if "m3" in columns or "m4" in columns else 2


@functools.cache
def _widest(device: torch.device) -> torch.dtype:
    """Double precision, or single where a device has no other."""
    if device.type == KIND:
        return torch.float64
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (RuntimeError, TypeError) as error:
        give_back(error)
        return torch.float32
    return torch.float64


def _on_device(x: torch.Tensor, columns: frozenset[str]) -> torch.Tensor:
    """The sums as one tensor of the device; nothing waits for it."""
    dtype = _widest(x.device)
    finite = torch.isfinite(x)
    clean = torch.where(finite, x, torch.zeros((), dtype=x.dtype, device=x.device))
    out: list[Any] = [None] * (len(COLUMNS) + _MORE)
    kept = finite.sum()
    out[NONFINITE] = x.numel() - kept
    out[COUNT] = torch.full_like(out[NONFINITE], x.numel())
    if "minimum" in columns or "maximum" in columns:
        out[MINIMUM] = torch.where(finite, x, math.inf).amin()
        out[MAXIMUM] = torch.where(finite, x, -math.inf).amax()
    if "zeros" in columns:
        out[ZEROS] = (x == 0).sum()
    if dtype is torch.float32:
        largest = clean.abs().amax().to(dtype)
        out[_UNIT] = torch.where(largest > 0, largest, 1.0)
        clean = clean.to(dtype) / out[_UNIT]
    total = _total(clean, dtype)
    if "sum" in columns:
        out[SUM] = total
    if "squares" in columns:
        out[SQUARES] = powers_about(clean, 0.0, 2, dtype)[1]
    if "absolutes" in columns:
        out[ABSOLUTES] = _total(clean.abs(), dtype)
    if most := _order(columns):
        shift = (total / kept.clamp(min=1)).to(clean.dtype)
        clean = torch.where(finite, clean, shift)
        out[MEAN : MEAN + most] = powers_about(clean, shift.to(dtype), most, dtype)
        out[_SHIFT] = shift
    missing = torch.full_like(total, math.nan)
    return torch.stack([missing if one is None else one.to(dtype) for one in out])


def read_sums(taken: Sequence[Taken]) -> list[Row]:
    """The sums of all tensors as numbers; those on a device are read in one copy."""
    late: dict[torch.device, list[torch.Tensor]] = {}
    for one in taken:
        if isinstance(one, torch.Tensor):
            late.setdefault(one.device, []).append(one)
    read = {device: iter(torch.stack(some).tolist()) for device, some in late.items()}
    return [
        _as_row(next(read[one.device])) if isinstance(one, torch.Tensor) else one for one in taken
    ]


def _as_row(numbers: Sequence[float]) -> Row:
    known = [number if math.isfinite(number) else None for number in numbers]
    row, (shift, unit) = known[: len(COLUMNS)], known[len(COLUMNS) :]
    for index in (COUNT, NONFINITE, ZEROS):
        number = row[index]
        row[index] = None if number is None else int(number)
    powers = [number for number in row[MEAN:] if number is not None]
    row[MEAN:] = [None] * len(row[MEAN:])
    if shift is not None and powers:
        centred(row, shift, powers)
    if unit is not None:
        low_high = row[MINIMUM : MAXIMUM + 1]
        row = scaled(row, unit)
        row[MINIMUM : MAXIMUM + 1] = low_high
    return row


# Decides with one call into C, for nearly all tensors, whether they have a norm
_kind_of = attrgetter("is_cpu", "layout", "dtype", "is_nested", "requires_grad")
_address, _item = torch._C.TensorBase.data_ptr, torch._C.TensorBase.item
_data = attrgetter("data")
_Group = tuple[torch.device | None, bool, bool]  # device, in half, requires a gradient
_NEAR: dict[Any, _Group] = {
    (True, torch.strided, dtype, False, learns): (None, dtype in HALF, learns)
    for dtype in FLOATS
    for learns in (False, True)
}
_BETWEEN = b',"nonfinite":0} {"norm":'


def norms_of(tensors: list[torch.Tensor]) -> list[Any]:
    """The norm of each tensor, serialized, or on its device until `read_norms`; b"" for others.

    There are no side effects.
    """
    if not tensors or modes() or is_included(FUNC):
        return [b""] * len(tensors)
    if PLAIN_TYPES.issuperset(map(type, tensors)):
        kinds = list(map(_kind_of, tensors))
        group, are_alike = _NEAR.get(kinds[0]), kinds.count(kinds[0]) == len(kinds)
        if group is not None and are_alike and min(map(_address, tensors)) > LOW:
            return _norms(group, tensors)  # nearly always: found without a loop
    out: list[Any] = [b""] * len(tensors)
    groups: dict[_Group, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if has_norm(tensor):
            device = None if tensor.is_cpu else tensor.device
            group = device, tensor.dtype in HALF, tensor.requires_grad
            groups.setdefault(group, []).append(index)
    for group, indices in groups.items():
        for index, norm in zip(indices, _norms(group, [tensors[i] for i in indices])):
            out[index] = norm
    return out


def _norms(group: _Group, tensors: list[torch.Tensor]) -> list[Any]:
    device, is_half, learns = group
    chosen = list(map(_data, tensors)) if learns else tensors
    norms: Sequence[Any] = torch._foreach_norm(chosen, *((2, torch.float32) if is_half else ()))
    return _texts(list(map(_item, norms)), chosen) if device is None else list(norms)


def read_norms(norms: Sequence[Any]) -> list[bytes]:
    """The norms among ``norms`` that are still on devices, read at once; b"" elsewhere."""
    late = [norm for norm in norms if isinstance(norm, torch.Tensor)]
    if not late:
        return [b""] * len(norms)
    home = late[0].device
    numbers = host(torch.stack([norm.to(home, torch.float32) for norm in late])).tolist()
    texts = iter(_texts(numbers, [None] * len(late)))
    return [next(texts) if isinstance(norm, torch.Tensor) else b"" for norm in norms]


def _texts(norms: Sequence[float], tensors: Sequence[torch.Tensor | None]) -> list[bytes]:
    """Norms as numbers. tensors: for counting, if that only costs time."""
    data = orjson.dumps(norms)[1:-1]  # one call serializes all
    texts = (b'{"norm":%b,"nonfinite":0}' % data.replace(b",", _BETWEEN)).split(b" ")
    if b"null" not in data:
        return texts
    return [_broken(t) if b"null" in text else text for text, t in zip(texts, tensors)]


def _broken(tensor: torch.Tensor | None) -> bytes:
    """Numbers of a detached tensor whose norm is not finite."""
    if tensor is None:
        return b'{"nonfinite":1}'
    finite = tensor[torch.isfinite(tensor)].double()
    found = {"norm": float(finite.norm()), "nonfinite": tensor.numel() - finite.numel()}
    return orjson.dumps(found)


def has_norm(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` has floating point elements and can be read."""
    return type(tensor) in PLAIN_TYPES and tensor.dtype in FLOATS and is_countable(tensor)
