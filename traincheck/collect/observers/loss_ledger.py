"""The scalars of a step that lead to a loss: terms, constants, sums, and the roots of backwards.

No graph and no tensor with one is kept: nodes are known by number and name, and a hook on a node
ends with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.loss_graph import (
    Input,
    Key,
    ScalarGraph,
    before_node,
    below,
    elements,
    key_of,
    node_of,
)
from traincheck.collect.trace_writer.guard import Fault, attempt
from traincheck.schema.observations.losses import (
    ConstantTerm,
    LossSum,
    LossSums,
    LossTerm,
    LossTerms,
)
from traincheck.schema.places import short

_MOST = 64  # of each kind, in a step
_MOST_SUMS = 8  # that are written
# Not recorded as calls of the program.
_detach, _clone = torch._C.TensorBase.detach, torch._C.TensorBase.clone
_task = getattr(torch._C, "_current_graph_task_id", None)


class Constant(NamedTuple):
    """The result of a loss function without a graph. weight: its factor; None if no number."""

    name: str
    where: str
    weight: float | None


@dataclass(slots=True)
class _Term:
    """A node that a sum or a root consists of.

    reached: whether a backward pass came to it. is_of_root: whether a root consists of it.
    """

    name: str
    reached: bool = False
    is_of_root: bool = False


@dataclass(slots=True)
class Root:
    """The root of a backward pass.

    names: of its terms, and their lines. nodes, weighted: of its graph. weights: the gradients of
    its terms.
    """

    nodes: set[Key]
    weighted: set[Key]
    task: int | None = None
    weights: dict[Key, torch.Tensor] = field(default_factory=dict)
    names: dict[Key, tuple[str, str]] = field(default_factory=dict)
    elements: dict[Key, int] = field(default_factory=dict)


class _Sum(NamedTuple):
    """A sum of two scalars with a graph, and its terms on both sides."""

    where: str
    result: _Term
    terms: tuple[_Term, ...]


class _Added(NamedTuple):
    """A constant that is added to a scalar with a graph."""

    constants: tuple[Constant, ...]
    sign: float
    value: torch.Tensor | float
    where: str


class LossLedger:
    """Follows the scalars of one step.

    Attributes:
        fault: gets what failed, and the error.
        functions: name and line of the loss functions, by the node of their result.
        constants: results of loss functions without a graph, and what is computed from them, by id.
        roots: of the backward passes so far.
        open: the root of the last backward pass.
    """

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.functions: dict[Key, tuple[str, str]] = {}
        self.constants: dict[int, tuple[weakref.ref[torch.Tensor], tuple[Constant, ...]]] = {}
        self.roots: list[Root] = []
        self.open: Root | None = None
        self._added: dict[Key, _Added] = {}
        self._values: list[tuple[str, str, torch.Tensor]] = []
        self._terms: dict[Key, _Term] = {}
        self._sums: list[_Sum] = []
        self._waiting: tuple[int | None, list[_Sum]] = None, []
        self._numbers_of_lines: dict[str, torch.Tensor | float] = {}  # of the step before

    # -- constants

    def note_constant(self, tensor: torch.Tensor, found: tuple[Constant, ...]) -> None:
        """A tensor without a graph is, or was computed from, results of loss functions."""
        if len(self.constants) >= _MOST:
            self.constants = {
                k: each for k, each in self.constants.items() if each[0]() is not None
            }
        if len(self.constants) < _MOST:
            self.constants[id(tensor)] = weakref.ref(tensor), found

    def note_value(self, name: str, where: str, result: torch.Tensor) -> None:
        """The result of a loss function."""
        if len(self._values) < _MOST:
            self._values.append((name, where, _clone(_detach(result))))

    def _of(self, value: Any) -> tuple[Constant, ...]:
        known = self.constants.get(id(value))
        return known[1] if known is not None and known[0]() is value else ()

    def derive(
        self, name: str, sign: float | None, args: tuple[Any, ...], result: torch.Tensor
    ) -> None:
        """A tensor without a graph was computed."""
        found: list[Constant] = []
        if name == "detach" and (node := node_of(args[0])) is not None:
            function = self.functions.get(key_of(node))
            found += () if function is None else (Constant(*function, 1.0),)
        for place, value in enumerate(args[:2]):
            other = args[1 - place] if len(args) > 1 else None
            for constant in self._of(value):
                weight = constant.weight
                if sign is not None:
                    # ``__rsub__`` is the other operand less the tensor
                    is_negative = sign < 0 and place == (0 if name == "__rsub__" else 1)
                    weight = None if weight is None else -weight if is_negative else weight
                elif "mul" in name or "div" in name:
                    weight = _scaled(weight, name, other)
                elif name == "__neg__":
                    weight = None if weight is None else -weight
                found.append(constant._replace(weight=weight))
        if found:
            self.note_constant(result, tuple(found))

    # -- sums

    def add(
        self, one: Any, rest: tuple[Any, ...], sign: float, result: torch.Tensor, where: str
    ) -> None:
        """A scalar with a graph is the sum of two operands."""
        if not rest or len(self._added) + len(self._sums) >= _MOST:
            return
        other = rest[0]
        if not isinstance(other, torch.Tensor):
            if type(other) in (int, float) and other:
                key = key_of(result.grad_fn)
                self._added[key] = _Added((), 1.0, float(other), where)
            return
        for constant, graph in ((one, other), (other, one)):
            found = self._of(constant)
            if found and _has_graph(graph):
                value = _clone(_detach(constant))
                self._added[key_of(result.grad_fn)] = _Added(found, sign, value, where)
        if _has_graph(one) and _has_graph(other) and one is not result:
            self._note_sum(one, other, result, where)

    def _note_sum(
        self, one: torch.Tensor, other: torch.Tensor, result: torch.Tensor, where: str
    ) -> None:
        found: dict[Key, Input] = {}
        for tensor in (one, other):
            graph = ScalarGraph(Input(tensor.grad_fn, tensor.output_nr, ()), self.functions)
            if not graph.is_whole:
                return
            found |= graph.terms
        terms = tuple(self._term(key, term) for key, term in found.items())
        whole = self._hooked(key_of(result.grad_fn), result.grad_fn, 0, "")
        self._sums.append(_Sum(where, whole, terms))

    def _term(self, key: Key, term: Input) -> _Term:
        known = self._terms.get(key)
        if known is not None:
            return known
        name, where = self._function(term)
        shown = f"{name} ({short(where)})" if where else name
        return self._hooked(key, term.node, term.output, shown)

    def _function(self, term: Input) -> tuple[str, str]:
        """Name and line of the loss function that a term is the result of; else its node's name."""
        for key in below(term):
            if key in self.functions:
                return self.functions[key]
        return key_of(term.node).name, ""

    def _hooked(self, key: Key, node: Any, output: int, name: str) -> _Term:
        """A term with a hook on its node, which keeps nothing alive."""
        term = self._terms.get(key)
        if term is None:
            term = self._terms[key] = _Term(name)
            before_node(node, self._hook(key, term), output)
        return term

    def _hook(self, key: Key, term: _Term) -> Callable[[Any], None]:
        def reached(gradient: Any) -> None:
            term.reached = True
            root = self.open
            if root is None or key not in root.names or _task is None:
                return
            task = _task()
            root.task = task if root.task is None else root.task
            if root.task == task and gradient is not None:
                root.weights[key] = _clone(_detach(gradient))

        return partial(attempt, self.fault, reached)

    # -- roots

    def begin(self, graph: ScalarGraph, node: Any) -> None:
        """A backward pass begins at a node, with this graph, which is not kept."""
        root = Root(graph.nodes, graph.weighted)
        for key, term in graph.terms.items():
            self._term(key, term).is_of_root = True
            root.names[key] = self._function(term)
            root.elements[key] = elements(term)
        self._hooked(key_of(node), node, 0, "")
        self.open = root
        self.roots.append(root)

    def terms(self) -> Iterator[LossTerms]:
        """The terms of each root. Waits for devices."""
        for root in self.roots:
            terms = tuple(
                LossTerm(
                    *root.names[key],
                    weight=_number(root.weights.get(key)),
                    elements=root.elements[key],
                    weighted_by_itself=key in root.weighted,
                )
                for key in root.names
            )
            yield LossTerms(terms, tuple(self._constants(root)))

    def _constants(self, root: Root) -> Iterator[ConstantTerm]:
        for key in (key for key in self._added if key in root.nodes):
            added = self._added[key]
            for name, where, weight in added.constants:
                value = _number(added.value) or 0.0
                signed = None if weight is None else weight * added.sign
                yield ConstantTerm(name, where, signed, value)
            if not added.constants:
                yield from self._numbers(added, root)

    def _numbers(self, added: _Added, root: Root) -> Iterator[ConstantTerm]:
        """A plain number was added: losses that are not behind the root, and have a value.

        A number that is the same in two steps is a setting.
        """
        last, self._numbers_of_lines[added.where] = (
            self._numbers_of_lines.get(added.where, added.value),
            added.value,
        )
        if last == added.value:
            return
        trained = set(root.names.values())
        for name, where, tensor in self._values:
            value = _number(tensor)
            if (name, where) not in trained and value and isinstance(added.value, float):
                yield ConstantTerm(name, where, added.value / value, value, number=True)

    def sums(self) -> LossSums | None:
        """The sums of an earlier step, whose backward passes have run; None if there are none."""
        at, waiting = self._waiting
        self._waiting = None, []
        found = tuple(
            LossSum(
                each.where,
                tuple(term.name for term in each.terms if term.reached and term.is_of_root),
                tuple(term.name for term in each.terms if not term.reached),
                each.result.reached,
            )
            for each in waiting[:_MOST_SUMS]
        )
        return LossSums(found, at) if found else None

    def end(self, step: int | None) -> None:
        """The step is over. Its sums wait: a later step may still use them."""
        self._waiting = step, self._sums
        self.functions, self.constants, self._terms = {}, {}, {}
        self._added, self._sums, self._values = {}, [], []
        self.roots, self.open = [], None


def _has_graph(value: Any) -> bool:
    return type(value) is torch.Tensor and value.grad_fn is not None and value.dim() == 0


def _scaled(weight: float | None, name: str, factor: Any) -> float | None:
    if weight is None or type(factor) not in (int, float):
        return None
    number = float(factor)
    if "div" not in name:
        return weight * number
    return weight / number if number else None


def _number(value: torch.Tensor | float | None) -> float | None:
    if value is None or not isinstance(value, torch.Tensor):
        return value
    number: float = host(value).item()
    return number
