"""Results at positions that must not change, and the first operation at which they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from traincheck.collect.probes.base import Call
from traincheck.collect.probes.batch import leaves
from traincheck.collect.probes.laboratory import Bench, distance
from traincheck.collect.probes.operations import Operation, Tape

TOLERANCE = 1e-3  # of the largest value


def fixed(tensor: torch.Tensor, kept: torch.Tensor) -> torch.Tensor | None:
    """The elements of a result that belong to kept positions only.

    Args:
        tensor: whose first dimension holds samples, each perhaps several times in a row.
        kept: [samples, positions], true where results must not change.

    Returns:
        One-dimensional; None if its dimensions cannot be told apart. A dimension of the size of a
        sequence holds positions.
    """
    size, length = kept.shape
    if not tensor.dim() or not tensor.shape[0] or tensor.shape[0] % size or size == length:
        return None
    mask = kept.new_ones(tensor.shape)
    for dim in range(1, tensor.dim()):
        if tensor.shape[dim] == length:
            shape = [tensor.shape[0], *[1] * (tensor.dim() - 1)]
            shape[dim] = length
            mask &= kept.repeat_interleave(tensor.shape[0] // size, 0).reshape(shape)
    return tensor.detach()[mask]


def change(
    before: Any, after: Any, kept: torch.Tensor, *, by_position: bool = False
) -> float | None:
    """How far results at kept positions have moved; None if there are no such results.

    by_position: leave out results that have no dimension of positions.
    """
    found: list[float] = []
    for a, b in zip(leaves(before), leaves(after)):
        if not a.is_floating_point() or a.dim() < 2 or a.shape[0] != kept.shape[0]:
            continue
        if by_position and kept.shape[1] not in a.shape[1:]:
            continue
        first, second = fixed(a, kept), fixed(b, kept) if a.shape == b.shape else None
        if first is not None and second is not None and first.numel():
            found.append(distance(first, second, a.detach()))
    return max(found, default=None)


def first_moved(
    call: Call, bench: Bench, before: Any, after: Any, kept: torch.Tensor
) -> dict[str, str]:
    """Where results at kept positions move first: operation, module and line.

    before, after: the inputs of both runs.
    """
    return first_of(
        call, taped(bench, before), taped(bench, after), lambda one, two: moves(one, two, kept)
    )


def taped(bench: Bench, given: Any) -> list[Operation]:
    """The operations of a forward."""
    with Tape(bench.module) as tape:
        bench.forward(given)
    return tape.operations


def first_of(
    call: Call,
    first: Sequence[Operation],
    second: Sequence[Operation],
    differs: Callable[[Operation, Operation], bool],
) -> dict[str, str]:
    """The first operation that differs in two forwards, its module and line; empty for none."""
    for one, two in zip(first, second):
        if one.name != two.name or len(one.results) != len(two.results):
            break
        if differs(one, two):
            where = call.path(one.module) if one.module is not None else call.name
            return {"operation": one.name, "place": one.place, "where": where}
    return {}


def moves(one: Operation, two: Operation, kept: torch.Tensor) -> bool:
    """Whether results at kept positions differ."""
    for a, b in zip(one.results, two.results):
        if a.shape != b.shape or not a.is_floating_point() or a.dim() < 2:
            continue
        first, second = fixed(a, kept), fixed(b, kept)
        is_there = first is not None and second is not None and first.numel()
        if is_there and distance(first, second, a) > TOLERANCE:  # type: ignore[arg-type]
            return True
    return False
