"""Attention weights: the dim over which softmax normalizes them, and the dim that is summed.

They are read from the graph before a backward pass, because attention is written in many ways. The
graph shows which product uses the softmax of a product, and at which of its dims.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.tensors.loss_graph import IS_TOLD, Input, Sizes, inputs, kind, signed
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.claims import Schedule
from traincheck.schema.observations.losses import AttentionSoftmax, AttentionWeights

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_CALLS = 2  # of an observed step
# An observation takes a microsecond or two per node; a bug exists from the start.
_SCHEDULE = Schedule(first=3, every=200)
_MOST_NODES = 1 << 13
_MOST_BETWEEN = 16  # nodes between a softmax and a product
_MOST_FOUND = 8

# By the part of their names before ``Backward``: where the first factor is among the inputs.
_PRODUCTS = {"Bmm": 0, "Mm": 0, "Baddbmm": 1}
_VIEWS = frozenset({"View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze"})
_PERMUTATIONS = frozenset({"Permute", "Transpose", "T"})
# They keep each element at its position, if only one input is differentiated.
_ELEMENTWISE = frozenset({
    "Alias", "Clone", "Div", "FusedDropout", "MaskedFill", "Mul", "NativeDropout", "ToCopy",
})  # fmt: skip
# Between the product of queries and keys, and softmax.
_SCALING = _VIEWS | _PERMUTATIONS | _ELEMENTWISE | {"Add", "Expand", "Sub", "Tanh", "Where"}
_SOFTMAX = "Softmax"


class AttentionSoftmaxObserver(Observer):
    """Reads the graph of a loss before its backward pass."""

    produces: ClassVar = (AttentionSoftmax,)
    hook: ClassVar = Hook.BEFORE_BACKWARD

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self.is_wanted &= IS_TOLD
        self._use = UseSchedule(_CALLS, _SCHEDULE)

    def before(self, em: Emitter, args: tuple[Any, ...]) -> None:
        """A backward pass begins, called with ``args``."""
        if not args or type(args[0]) is not torch.Tensor or args[0].grad_fn is None:
            return
        if not self._use.is_due(self._session.clock.step):
            return
        found = dict.fromkeys(_weights(args[0].grad_fn))
        if found:
            write(em, AttentionSoftmax(weights=tuple(found)[:_MOST_FOUND]))


def _weights(loss: Any) -> Iterator[AttentionWeights]:
    """The weights of all attention in the graph of a loss."""
    for node in _nodes(loss):
        first = _PRODUCTS.get(kind(node) or "")
        if first is None:
            continue
        factors = inputs(node)[first : first + 2]
        for place, factor in enumerate(factors):
            if factor is None or factor.sizes is None:
                continue
            # A product sums over the last dim of its first factor, the one before in its second
            last = len(factor.sizes) - 1
            found = _softmax(factor, (last - 1, last) if place == 0 else (last, last - 1))
            if found is not None:
                yield found


def _nodes(loss: Any) -> Iterator[Any]:
    """The nodes of a graph, those next to the loss first, up to a limit."""
    known, to_do = {loss}, deque([loss])
    while to_do:
        node = to_do.popleft()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in known and len(known) < _MOST_NODES:
                known.add(following)
                to_do.append(following)


def _softmax(here: Input, dims: tuple[int, int]) -> AttentionWeights | None:
    """The softmax that produced a factor, if of attention, and the former positions of ``dims``."""
    for _ in range(_MOST_BETWEEN):
        name = kind(here.node) or ""
        if here.sizes is None:
            return None
        if name == _SOFTMAX:
            normalized = signed(here.node._saved_dim) % len(here.sizes)
            return (
                AttentionWeights(here.sizes, normalized, *dims)
                if _is_of_product(here.node)
                else None
            )
        given = [each for each in inputs(here.node) if each is not None]
        if len(given) != 1 or given[0].sizes is None:
            return None
        kept, summed = (_before(name, here, given[0].sizes, dim) for dim in dims)
        if kept is None or summed is None:
            return None
        here, dims = given[0], (kept, summed)
    return None


def _before(name: str, here: Input, sizes: Sizes, dim: int) -> int | None:
    """The position of a dim of a result in its input, which has these sizes."""
    assert here.sizes is not None
    if name in _VIEWS:
        # The dim with as many elements before it, if it is as large
        ahead, size = prod(here.sizes[:dim]), here.sizes[dim]
        places = (n for n, each in enumerate(sizes) if each == size and prod(sizes[:n]) == ahead)
        return next(places, None)
    if name in _PERMUTATIONS:
        return _MOVES[name](here.node, len(sizes), dim)
    if name == "Expand":
        moved = dim - len(here.sizes) + len(sizes)
        return moved if moved >= 0 and sizes[moved] == here.sizes[dim] else None
    return dim if name in _ELEMENTWISE and sizes == here.sizes else None


def _transposed(node: Any, count: int, dim: int) -> int:
    first, second = signed(node._saved_dim0) % count, signed(node._saved_dim1) % count
    return {first: second, second: first}.get(dim, dim)


def _permuted(node: Any, count: int, dim: int) -> int:
    return signed(node._saved_dims[dim]) % count


_MOVES: dict[str, Callable[[Any, int, int], int]] = {
    "Transpose": _transposed,
    "Permute": _permuted,
    "T": lambda _node, count, dim: count - 1 - dim,
}


def _is_of_product(softmax: Any) -> bool:
    """Whether the scores are products, such as of queries and keys, not parameters or distances."""
    to_do = deque([softmax])
    for _ in range(_MOST_BETWEEN):
        if not to_do:
            break
        for source in inputs(to_do.popleft()):
            name = None if source is None else kind(source.node)
            if name in _PRODUCTS:
                return True
            if source is not None and name in _SCALING:
                to_do.append(source.node)
    return False
