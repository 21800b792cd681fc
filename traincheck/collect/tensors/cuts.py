"""Operations that let no gradient pass: where each way back from a loss ends in one of them.

An operation is a gate if its derivative can be 0 in all elements: a factor of zeros, a limit that
changes everything, a mask that hides everything, a rounded value. Whether it is 0 stays a tensor on
the device of the program until the step ends, so nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

from traincheck.collect.tensors.loss_graph import Input, Key, inputs, key_of, kind, node_of
from traincheck.collect.tensors.operation_looks import (
    Call,
    Number,
    few,
    few_of_both,
    is_readable,
    softmax_dim,
)
from traincheck.collect.tensors.reading import PLAIN_TYPES
from traincheck.schema.torch_api import IGNORED_LABEL

_MOST_NODES = 512  # that are visited behind a loss
_MOST_GATES = 512
_LEAF = "AccumulateGrad"


class Gate(NamedTuple):
    """An operation whose derivative may be 0.

    Attributes:
        function, where: what the program called.
        why: how the derivative becomes 0, such as `factor`.
        is_zero: 1 where it is 0 in all elements that were read.
        device: of its result.
    """

    function: str
    where: str
    why: str
    is_zero: Number
    device: torch.device


def _differentiable(value: object) -> bool:
    return type(value) in PLAIN_TYPES and value.requires_grad  # type: ignore[attr-defined]


def _has_other_way(call: Call) -> bool:
    """Whether a limit or a value is differentiated, too."""
    return any(map(_differentiable, (*call.args[1:], *call.kwargs.values())))


def _factor(call: Call) -> Number | None:
    """Whether a factor that is not differentiated is 0."""
    first, second = call.given(0, "input", "self"), call.given(1, "other")
    if _differentiable(first) == _differentiable(second):
        return None
    other = second if _differentiable(first) else first
    if isinstance(other, (int, float)):
        return float(other == 0)
    return (few(other) == 0).all() if is_readable(other) and other.numel() else None


def _dead(call: Call) -> Number | None:
    """Whether all results are 0."""
    return (few(call.result) == 0).all() if is_readable(call.result) else None


def _limited(call: Call) -> Number | None:
    """Whether a limit changes all elements."""
    given, result = call.given(0, "input", "self"), call.result
    if not (is_readable(given) and is_readable(result)) or given.shape != result.shape:
        return None
    before, after = few_of_both(given, result)
    return None if _has_other_way(call) else (before != after).all()


def _filled(call: Call) -> Number | None:
    """Whether a mask replaces all elements."""
    mask = call.given(1, "mask")
    if not is_readable(mask) or not mask.numel() or _has_other_way(call):
        return None
    return (few(mask) != 0).all()


def _chosen(call: Call) -> Number | None:
    """Whether all elements come from the value that is not differentiated."""
    condition, one, other = (
        call.given(0, "condition"),
        call.given(1, "input"),
        call.given(2, "other"),
    )
    if _differentiable(one) == _differentiable(other) or not is_readable(condition):
        return None
    if condition.dtype is not torch.bool:  # `x.where(condition, other)`
        return None
    seen = few(condition)
    return (seen == 0 if _differentiable(one) else seen != 0).all()


def _of_one(call: Call) -> Number | None:
    """Whether a softmax runs over one element."""
    dim = softmax_dim(call)
    return None if dim is None else float(call.result.shape[dim] == 1)


def _ignored(call: Call) -> Number | None:
    """Whether a loss ignores all labels."""
    target, ignored = call.given(1, "target"), call.given(4, "ignore_index")
    if not is_readable(target) or not target.numel():
        return None
    return (few(target) == (ignored if isinstance(ignored, int) else IGNORED_LABEL)).all()


def _flat(call: Call) -> Number | None:
    """A function of steps: its derivative is 0 wherever it has one."""
    del call
    return 1.0


_Read: TypeAlias = Callable[[Call], "Number | None"]
_ROWS: tuple[tuple[str, _Read, str], ...] = (
    ("factor", _factor, "mul mul_ __mul__ __rmul__ __imul__ multiply"),
    ("dead", _dead, "relu relu_ relu6 threshold"),
    ("limit", _limited, "clamp clip clamp_min clamp_max hardtanh"),
    ("mask", _filled, "masked_fill masked_fill_"),
    ("choice", _chosen, "where"),
    ("softmax", _of_one, "softmax log_softmax"),
    ("labels", _ignored, "cross_entropy nll_loss"),
    ("steps", _flat, "round round_ floor floor_ ceil ceil_ trunc trunc_ sign sgn"),
)
# Name of a function -> how its derivative may become 0, and what says so
CUTTING: Mapping[str, tuple[str, _Read]] = {
    name: (why, read) for why, read, names in _ROWS for name in names.split()
}


class Met(NamedTuple):
    """A gate on the ways back from a loss.

    Attributes:
        is_cut: 1 where it is 0 and each way back from the loss ends at such a gate.
    """

    gate: Gate
    is_cut: Number


@dataclass(slots=True)
class _Node:
    """A node that is open: its outputs were not yet put together."""

    node: object
    key: Key
    to_do: list[Input]
    found: Number | None = 1.0  # None: a gradient passes
    has_ways: bool = False


class Gates:
    """The gates of a step, by the nodes of the graph that they made."""

    def __init__(self) -> None:
        self._gates: dict[Key, Gate] = {}

    def clear(self) -> None:
        """Forget them: the step has ended."""
        self._gates.clear()

    def enter(self, why: str, read: _Read, call: Call, where: str) -> None:
        """A function of `CUTTING` was called."""
        result = call.result
        if type(result) not in PLAIN_TYPES or len(self._gates) >= _MOST_GATES:
            return
        first = next(iter(self._gates.values()), None)
        if first is not None and first.device != result.device:
            return  # flags are put together where they are
        node = node_of(result)
        is_zero = read(call) if node is not None else None
        if node is not None and is_zero is not None:
            self._gates[key_of(node)] = Gate(call.name, where, why, is_zero, result.device)

    def behind(self, root: torch.Tensor) -> tuple[Number, list[Met]]:
        """The gates on the ways back from the root of a backward pass.

        Returns:
            1 where no gradient passes; and the gates, the nearest to the root first.
        """
        node = node_of(root) if type(root) in PLAIN_TYPES and self._gates else None
        if node is None:
            return 0.0, []
        met: dict[Key, Gate] = {}
        found = self._cut(node, met)
        if found is None:
            return 0.0, []
        return found, [Met(gate, _both(gate.is_zero, found)) for gate in met.values()]

    def _cut(self, root: object, met: dict[Key, Gate]) -> Number | None:
        """1 where each way back from a node is cut; None if a way is free, or not known."""
        known: dict[Key, Number | None] = {}
        stack = [self._open(root, met)]
        while True:
            here = stack[-1]
            following = self._unknown(here, known)
            if following is None:
                known[here.key] = self._closed(here)
                stack.pop()
                if not stack:
                    return known[here.key]
            elif len(known) + len(stack) >= _MOST_NODES:
                return None
            else:
                stack.append(self._open(following.node, met))

    def _open(self, node: object, met: dict[Key, Gate]) -> _Node:
        key = key_of(node)
        gate = self._gates.get(key)
        if gate is not None:
            met.setdefault(key, gate)
        return _Node(node, key, [one for one in inputs(node) if one is not None])

    def _unknown(self, here: _Node, known: Mapping[Key, Number | None]) -> Input | None:
        """The next input whose ways were not followed; before it, the others are put together."""
        while here.to_do:
            key = key_of(here.to_do[-1].node)
            if key not in known:
                return here.to_do[-1]
            here.to_do.pop()
            here.has_ways = True
            other = known[key]
            here.found = None if here.found is None or other is None else _both(here.found, other)
        return None

    def _closed(self, here: _Node) -> Number | None:
        is_free = kind(here.node) in (None, _LEAF) or not here.has_ways
        found = None if is_free else here.found
        gate = self._gates.get(here.key)
        if gate is None:
            return found
        return gate.is_zero if found is None else _either(gate.is_zero, found)


def _both(one: Number, other: Number) -> Number:
    """1 where both are."""
    if one is other:
        return one
    return one * other


def _either(one: Number, other: Number) -> Number:
    """1 where one of them is."""
    return 1 - (1 - one * 1.0) * (1 - other * 1.0)
