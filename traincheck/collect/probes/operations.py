"""The operations of a forward: which is the first whose result shows more than it should."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from traincheck.collect.probes.base import Call
from traincheck.collect.probes.batch import leaves, mapped
from traincheck.collect.probes.models import Bench, distance
from traincheck.collect.tensors.reading import modules_in
from traincheck.collect.trace_writer.call_site import outside
from traincheck.collect.trace_writer.emitter import hidden

_MOST_BYTES = 1 << 30  # of results that are kept


@dataclass(slots=True)
class Operation:
    """One call of a function of torch.

    Attributes:
        name: of the function, ``torch.mean``.
        module: the innermost module that is being called.
        place: line of the user's code.
        results: copies of the tensors that it returned.
        given: shapes and dtypes of the tensors that it was given.
        fill: number that it puts where a mask says so; None for other functions.
    """

    name: str
    module: nn.Module | None
    place: str
    results: list[torch.Tensor]
    given: list[tuple[tuple[int, ...], torch.dtype]]
    fill: float | None = None


class Tape(TorchFunctionMode):
    """Keeps the result of each operation.

    Args:
        module: whose forward is recorded.
        replaced: index of an operation -> results that it returns instead.
    """

    def __init__(
        self, module: nn.Module, replaced: Mapping[int, list[torch.Tensor]] | None = None
    ) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.is_whole = True  # all results were kept
        self._replaced = replaced or {}
        self._stack: list[nn.Module] = []
        self._bytes = 0
        self._hooks: list[Any] = []
        for part in modules_in(module):
            entered = part.register_forward_pre_hook(lambda part, _: self._stack.append(part))
            self._hooks += [entered, part.register_forward_hook(self._leave, always_call=True)]

    def __exit__(self, *raised: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def _leave(self, part: nn.Module, args: Any, result: Any) -> None:
        self._stack.pop()  # what a hook returns would replace the result

    @hidden
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [(tuple(t.shape), t.dtype) for t in leaves((args, kwargs))]
        result = func(*args, **kwargs)
        index = len(self.operations)
        if index in self._replaced:
            values = iter(self._replaced[index])
            result = mapped(result, lambda tensor: next(values).to(tensor.dtype))
        kept = [self._copy(tensor) for tensor in leaves(result)] if self.is_whole else []
        module = self._stack[-1] if self._stack else None
        place = outside(sys._getframe(1)) or ""
        name = resolve_name(func) or str(getattr(func, "__name__", func))
        fill = None  # the number of ``masked_fill`` and ``where``
        if name.rpartition(".")[2].strip("_") in ("masked_fill", "where"):
            numbers = [n for n in (*args, *kwargs.values()) if type(n) in (int, float)]
            fill = float(numbers[-1]) if numbers else None
        self.operations.append(Operation(name, module, place, kept, given, fill))
        return result

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        self._bytes += tensor.numel() * tensor.element_size()
        if self._bytes > _MOST_BYTES:
            self.is_whole = False
        return tensor.detach().clone()


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
    tape = Tape(bench.module)
    with tape:
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
