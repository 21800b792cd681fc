"""Sums over the elements of tensors, without a copy of them.

On the CPU, sums are numbers at once. On a device they stay there, as one small tensor, until
`read_sums` reads all of them in one copy at the end of a step.

Single precision is summed in pieces of bounded length that are added in double precision, so the
relative error of a sum does not grow with the size of a tensor. Half precision is summed in single
precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch

from traincheck.collect.tensors.fingerprint import PLAIN_TYPES
from traincheck.collect.tensors.readable import FLOATS, FUNC, HALF, is_countable, is_included
from traincheck.collect.tensors.reading import detached, modes
from traincheck.schema.metrics.sums import (
    ABSOLUTES,
    COLUMNS,
    COUNT,
    CUBES,
    FOURTHS,
    MAXIMUM,
    MINIMUM,
    NONFINITE,
    SQUARES,
    SUM,
    ZEROS,
    Row,
)

# Sums of one tensor; on a device a tensor of float64 in the order of COLUMNS, NaN: not taken.
Taken: TypeAlias = "Row | torch.Tensor"
_PIECE = 1 << 15
_RARE = frozenset({"zeros", "absolutes", "cubes", "fourths"})


def why_not(tensor: torch.Tensor) -> str | None:
    """Why no sums of a tensor are taken; None if they can be."""
    if tensor.dtype not in FLOATS:
        return f"dtype {str(tensor.dtype).removeprefix('torch.')}"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return "sparse or nested"
    if tensor.numel() == 0:
        return "no elements"
    if not is_countable(tensor):
        return f"a {type(tensor).__name__} that cannot be read"
    return None


def local_part(tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """The part of a distributed tensor that is in this process, and whether it is only a part."""
    if type(tensor) in PLAIN_TYPES:
        return tensor, False
    placements = getattr(tensor, "placements", None)
    if placements is None or not hasattr(tensor, "to_local"):
        return tensor, False
    local: torch.Tensor = tensor.to_local()
    return local, any(placement.is_shard() for placement in placements)


def sums_of(tensor: torch.Tensor, columns: frozenset[str]) -> Taken:
    """The sums of a readable tensor.

    Args:
        tensor: one for which `why_not` gives None.
        columns: names among COLUMNS; the counts are always taken.
    """
    flat = detached(tensor)
    return _on_cpu(flat, columns) if flat.is_cpu else _on_device(flat, columns)


def difference_sums(
    one: torch.Tensor, other: torch.Tensor, columns: frozenset[str]
) -> Taken | None:
    """The sums of ``one - other``; None if they cannot be compared element by element."""
    if one.shape != other.shape or one.device != other.device:
        return None
    difference = detached(one) - detached(other)
    return None if why_not(difference) else sums_of(difference, columns)


def is_hidden() -> bool:
    """Whether tensors cannot be read now, because other code sees each operation."""
    return bool(modes()) or is_included(FUNC)


def _on_cpu(x: torch.Tensor, columns: frozenset[str]) -> Row:
    row: Row = [None] * len(COLUMNS)
    row[COUNT] = x.numel()
    if "squares" in columns:
        row[SQUARES] = _squares(x)
    if "sum" in columns:
        kind = torch.float32 if x.dtype in HALF else None
        row[SUM] = float(x.sum(dtype=kind).item())
    if "minimum" in columns or "maximum" in columns:
        low, high = torch.aminmax(x)
        row[MINIMUM], row[MAXIMUM] = float(low.item()), float(high.item())
    taken = [number for number in row[SUM:ZEROS] if number is not None]
    if not all(map(math.isfinite, taken)):
        _of_finite(x, row, columns)
        return row
    row[NONFINITE] = 0 if taken else None  # not known
    if not columns.isdisjoint(_RARE):
        _further(x, row, columns)
    return row


def _squares(x: torch.Tensor) -> float:
    """The sum of squares, in double precision over pieces."""
    if x.dtype in HALF:
        x = x.float()
    if not x.is_contiguous():
        x = x.contiguous() if x.numel() <= _PIECE else x.reshape(-1)
    flat, count = x.view(-1), x.numel()
    if count <= _PIECE or x.dtype is torch.float64:
        return float(torch.dot(flat, flat).item())
    whole = count - count % _PIECE
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, _PIECE), dim=1).double()
    total = float(torch.dot(norms, norms).item())
    if whole < count:
        total += float(torch.dot(flat[whole:], flat[whole:]).item())
    return total


def _of_finite(x: torch.Tensor, row: Row, columns: frozenset[str]) -> None:
    """The sums of the finite elements in double precision, where a sum is not finite.

    Sums of finite elements may overflow, too.
    """
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


def _further(x: torch.Tensor, row: Row, columns: frozenset[str]) -> None:
    """The sums that few ask for. x: its elements are finite."""
    if "zeros" in columns:
        row[ZEROS] = x.numel() - int(torch.count_nonzero(x).item())
    if "absolutes" in columns:
        row[ABSOLUTES] = float(x.abs().sum(dtype=torch.float64).item())
    if "cubes" in columns or "fourths" in columns:
        wide = x.double()
        square = wide * wide
        row[CUBES] = float((square * wide).sum().item())
        row[FOURTHS] = float((square * square).sum().item())


def _on_device(x: torch.Tensor, columns: frozenset[str]) -> torch.Tensor:
    """The sums as one tensor of the device; nothing waits for it."""
    finite = torch.isfinite(x)
    clean = torch.where(finite, x, torch.zeros((), dtype=x.dtype, device=x.device))
    out: list[Any] = [None] * len(COLUMNS)
    out[NONFINITE] = x.numel() - finite.sum(dtype=torch.float64)
    out[COUNT] = torch.full_like(out[NONFINITE], x.numel())
    wide = clean.double() if x.is_cuda else clean.float()
    if "sum" in columns:
        out[SUM] = wide.sum()
    if "squares" in columns:
        out[SQUARES] = wide.square().sum()
    if "minimum" in columns or "maximum" in columns:
        out[MINIMUM] = torch.where(finite, x, math.inf).amin()
        out[MAXIMUM] = torch.where(finite, x, -math.inf).amax()
    if "zeros" in columns:
        out[ZEROS] = (x == 0).sum()
    if "absolutes" in columns:
        out[ABSOLUTES] = wide.abs().sum()
    if "cubes" in columns or "fourths" in columns:
        out[CUBES], out[FOURTHS] = wide.pow(3).sum(), wide.pow(4).sum()
    missing = torch.full_like(out[COUNT], math.nan)
    return torch.stack([missing if one is None else one.to(missing.dtype) for one in out])


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


def _as_row(numbers: Iterable[float]) -> Row:
    row: Row = [None if math.isnan(number) or math.isinf(number) else number for number in numbers]
    for index in (COUNT, NONFINITE, ZEROS):
        number = row[index]
        row[index] = None if number is None else int(number)
    return row
