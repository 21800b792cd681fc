"""The autograd graph of a step: the call that made each node, its cost, and its time in backward.

Nodes are numbered as they are made, so the number of a node tells the call that made it. A graph is
walked when an outermost module returns and when a backward pass begins. No node is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from traincheck.collect.profile.clock import BACKWARD, Timeline
from traincheck.collect.profile.finite import FiniteWatch
from traincheck.collect.profile.flops import flops
from traincheck.collect.profile.layers import LayerStep
from traincheck.collect.profile.memory import (
    IS_READABLE,
    MemoryWatch,
    kept_inputs,
    saved_tensors,
    size_of,
)
from traincheck.collect.tensors.loss_graph import IS_TOLD
from traincheck.collect.tensors.reading import as_plain, gradient_of, unseen

next_number = torch._C._autograd._get_sequence_nr
_CUSTOM: type = getattr(torch._C, "_FunctionBase", object)
_ACCUMULATE = "AccumulateGrad"
# Functions of torch itself that are written as a program's are, and compute nothing.
_FREE = frozenset({"CheckpointFunctionBackward", "_NoopSaveInputsBackward", "_DDPSinkBackward"})


class Step(Protocol):
    """The step that a graph belongs to: see `StepProfile`."""

    timeline: Timeline
    finite: FiniteWatch
    memory: MemoryWatch
    is_open: bool
    exchanges: bool
    uncounted: Counter[str]
    unseen: Counter[str]
    fault: Callable[[Any, BaseException], None]

    def layer(self, row: int) -> LayerStep:
        """The facts of a row in this step."""


class Graph:
    """The nodes that one thread makes in a step.

    Attributes:
        first: number of the first node of the step.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self.first = next_number()
        self._starts: list[int] = [self.first]
        self._owners: list[int] = [0]
        self._met: set[int] = set()
        self._segments: set[int] = set()
        self._line_starts: list[int] = []
        self._lines: list[str | None] = []

    def enter(self, call: int) -> None:
        """The nodes from now on belong to this call."""
        self._starts.append(next_number())
        self._owners.append(call)

    def line(self, where: str | None) -> None:
        """The nodes from now on are made by this line."""
        number = next_number()
        if not self._line_starts or self._line_starts[-1] != number:
            self._line_starts.append(number)
            self._lines.append(where)
        else:
            self._lines[-1] = where

    def owner(self, number: int) -> int:
        """The call that made a node."""
        return self._owners[bisect_right(self._starts, number) - 1]

    def line_of(self, number: int) -> str | None:
        """The line that made a node, as far as lines were seen."""
        place = bisect_right(self._line_starts, number) - 1
        return self._lines[place] if place >= 0 else None

    def walk(self, roots: Iterable[Any]) -> None:
        """Meet all nodes that lead to these, each once in a step."""
        stack = [node for node in roots if node is not None]
        while stack:
            node = stack.pop()
            if type(node).__name__ == _ACCUMULATE:
                continue
            number = node._sequence_nr()
            if number < self.first or number in self._met:
                continue
            self._met.add(number)
            self._meet(node, number)
            stack += [source for source, _ in node.next_functions if source is not None]

    def _meet(self, node: Any, number: int) -> None:
        step, call = self._step, self.owner(number)
        layer = step.layer(step.timeline.calls[call][0])
        kind = type(node).__name__
        is_custom = isinstance(node, _CUSTOM)
        is_known = IS_TOLD and (not is_custom or kind in _FREE)
        cost = flops(node) if is_known else None
        if cost is None:
            step.uncounted[kind] += 1
        else:
            layer.forward += cost.forward
            layer.backward += cost.backward
        held = self._saved(node)
        layer.saved += held
        step.memory.held += held
        node.register_prehook(_Before(step, call))
        node.register_hook(_After(step, self, number, kind, call, held, _targets(node)))

    def _saved(self, node: Any) -> int:
        """Bytes that this node keeps and no other node kept before."""
        if not IS_READABLE:
            self._step.unseen["saved tensors of this version of torch"] += 1
            return 0
        packed: list[Any] = []
        tensors = list(saved_tensors(node, packed))
        for unpack in packed:
            found = list(kept_inputs(unpack, self._segments))
            tensors += found
            if "checkpoint" not in getattr(unpack, "__module__", ""):
                self._step.unseen["saved tensors that hooks of the program pack"] += 1
        return sum(self._step.memory.claim(size_of(tensor)) for tensor in tensors)


def _targets(node: Any) -> tuple[tuple[int, int] | None, ...]:
    """Number and place of the node that each gradient goes to; (-1, bytes) for a leaf."""
    found: list[tuple[int, int] | None] = []
    for source, place in node.next_functions:
        if source is None:
            found.append(None)
        elif type(source).__name__ == _ACCUMULATE:
            variable = source.variable
            is_new = gradient_of(variable) is None
            found.append((-1, as_plain(variable).nbytes if is_new else 0))
        else:
            found.append((source._sequence_nr(), place))
    return tuple(found)


class _Before:
    """A node begins to compute gradients."""

    __slots__ = ("_call", "_step")

    def __init__(self, step: Step, call: int) -> None:
        self._step, self._call = step, call

    def __call__(self, gradients: Any) -> None:
        step = self._step
        if step.is_open:
            step.timeline.go(self._call, BACKWARD)


class _After:
    """It has computed them. Its time lasts until the next node begins: they are added up."""

    __slots__ = ("_call", "_graph", "_held", "_kind", "_number", "_step", "_targets")

    def __init__(
        self, step: Step, graph: Graph, number: int, kind: str, call: int, held: int,
        targets: tuple[tuple[int, int] | None, ...],
    ) -> None:  # fmt: skip
        self._step, self._graph, self._number, self._kind = step, graph, number, kind
        self._call, self._held, self._targets = call, held, targets

    def __call__(self, computed: Any, given: Any) -> None:
        step = self._step
        if not step.is_open:
            return
        step.timeline.pause()
        try:
            with unseen():
                step.finite.gradient(
                    self._kind, self._call, self._line, computed, given, self._targets
                )
                step.memory.backward(self._call, self._held, self._targets)
                step.memory.allocated(self._call)
        except Exception as error:  # training must go on whatever we got wrong
            step.fault(self.__call__, error)
        # Until the next node, gradients are added up; of several ranks also exchanged
        step.timeline.go(0 if step.exchanges else self._call, BACKWARD)

    def _line(self) -> str | None:
        return self._graph.line_of(self._number)
