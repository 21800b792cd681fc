"""The graph behind a loss, and what a copy sees of its making: hooks, and recomputed segments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import checkpoint as checkpoints

from traincheck.collect.trace_writer.call_site import outside
from traincheck.collect.trace_writer.emitter import hidden

_MOST_NODES = 1 << 20
_CUSTOM: type = getattr(torch._C, "_FunctionBase", torch.autograd.Function)
_next_number = torch._C._autograd._get_sequence_nr


@dataclass(slots=True)
class Graph:
    """The findings about a graph.

    Attributes:
        variables: the leaves that get a gradient.
        old: identities of those that were used before the copy began.
        custom: names of the nodes of custom functions.
        is_whole: whether all of it was read.
    """

    variables: list[torch.Tensor] = field(default_factory=list)
    old: set[int] = field(default_factory=set)
    custom: set[str] = field(default_factory=set)
    is_whole: bool = True


def now() -> int:
    """A number that is larger than those of all nodes that exist in this thread."""
    return int(_next_number())


def graph_of(roots: tuple[torch.Tensor, ...], since: int) -> Graph:
    """Walk a graph. since: nodes with a smaller number are older than the copy."""
    found = Graph()
    seen: dict[Any, bool] = {}  # node -> whether it was reached through an old one
    todo = [(root.grad_fn, False) for root in roots if root.grad_fn is not None]
    while todo:
        node, is_old = todo.pop()
        if node in seen and (seen[node] or not is_old):
            continue
        if len(seen) >= _MOST_NODES:
            found.is_whole = False
            break
        seen[node] = is_old
        variable = getattr(node, "variable", None)
        if variable is not None:
            if is_old:
                found.old.add(id(variable))
            found.variables.append(variable)
            continue
        if isinstance(node, _CUSTOM):
            found.custom.add(type(node).__name__)
        is_old = is_old or node._sequence_nr() < since
        todo += [(other, is_old) for other, _ in node.next_functions if other is not None]
    unique = {id(variable): variable for variable in found.variables}
    found.variables = list(unique.values())
    return found


def nodes_of(roots: tuple[torch.Tensor, ...]) -> set[Any]:
    """All nodes behind some tensors."""
    seen: set[Any] = set()
    todo = [root.grad_fn for root in roots if root.grad_fn is not None]
    while todo and len(seen) < _MOST_NODES:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [other for other, _ in node.next_functions if other is not None]
    return seen


class TensorHooks:
    """Finds them in a copy of the process.

    Attributes:
        place: line that registered the first hook that replaced a gradient; empty if none did.
    """

    def __init__(self) -> None:
        self.place = ""

    def install(self) -> None:
        """Follow new hooks; for a copy of the process, which ends anyway."""
        original: Any = torch.Tensor.register_hook

        @hidden
        def register_hook(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
            place = outside(sys._getframe(1)) or "unknown line"

            @hidden
            def called(grad: torch.Tensor) -> Any:
                result = hook(grad)
                if result is not None and not self.place:
                    is_tensor = isinstance(result, torch.Tensor)
                    self.place = "" if is_tensor and bool(torch.equal(result, grad)) else place
                return result

            return original(tensor, called)

        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]


# Below `checkpoint`, which libraries bind before it could be replaced. From torch 2.14 on the first
# is called, and the second is for others.
_FUNCTIONS = (
    "_checkpoint_without_reentrant_generator_impl",
    "_checkpoint_without_reentrant_generator",
)


class Recomputed:
    """Counts the segments."""

    def __init__(self) -> None:
        self._count = 0
        self._without_state = 0
        self._place = ""

    def install(self) -> None:
        """Follow the calls; for a copy of the process, which ends anyway."""
        name = next((one for one in _FUNCTIONS if hasattr(checkpoints, one)), None)
        if name is None:
            return
        original = getattr(checkpoints, name)
        signature = inspect.signature(original)

        @hidden
        def generator(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            self.meet(preserves=given.get("preserve_rng_state", True))
            return original(*args, **kwargs)

        setattr(checkpoints, name, generator)

    def meet(self, *, preserves: bool) -> None:
        """A segment begins. preserves: whether it restores random states."""
        self._count += 1
        self._without_state += not preserves
        self._place = self._place or outside(sys._getframe(2)) or ""

    def facts(self) -> dict[str, str]:
        """The facts that are reported."""
        if not self._count:
            return {}
        return {
            "recomputed": str(self._count),
            "without_state": str(self._without_state or ""),
            "place": self._place,
        }
