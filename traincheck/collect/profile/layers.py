"""The modules of the profiled models, and what one step shows of each.

Row 0 is the program outside of all modules. A row is a path: calls of a module are added up.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from traincheck.collect.tensors.reading import (
    as_plain,
    is_a,
    is_opaque,
    items_of,
    own,
    sequence_of,
    table_of,
)
from traincheck.collect.tensors.summarize import dotted
from traincheck.collect.tracking.naming import class_of, is_there, unwrap, walk

OUTSIDE = ""  # path of row 0
_MOST_FORMS = 64  # tensors of one call whose shapes are kept
_MOST_DEPTH = 4
_EXCHANGING = frozenset({"DistributedDataParallel", "FullyShardedDataParallel"})

Form = tuple[list[int], str]


class Row:
    """A module.

    Attributes:
        path: dotted, beginning with the class of the outermost module.
        cls: dotted class.
        parent: row of the module that holds it; 0 for an outermost one.
        ref: weak reference to the module.
    """

    __slots__ = ("cls", "parent", "path", "ref")

    def __init__(self, path: str, module: torch.nn.Module | None, parent: int) -> None:
        self.path, self.parent = path, parent
        self.cls = "" if module is None else dotted(class_of(module))
        self.ref = None if module is None else weakref.ref(module)

    @property
    def module(self) -> torch.nn.Module | None:
        return None if self.ref is None else self.ref()

    def own(self, table: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors of one of its tables: ``_parameters``, ``_buffers``."""
        module = self.module
        held = {} if module is None else table_of(module, table)
        for name, tensor in list(held.items()):
            if tensor is not None and is_there(tensor):
                yield f"{self.path}.{name}", tensor


class Layers:
    """All rows, in the order of registration. They last as long as the profile.

    find: the path of a module that is called from no other.
    """

    def __init__(self, find: Callable[[torch.nn.Module], tuple[str, torch.nn.Module]]) -> None:
        self.rows: list[Row] = [Row(OUTSIDE, None, 0)]
        self._find = find
        self._of: dict[int, int] = {}
        self._paths: dict[str, int] = {OUTSIDE: 0}

    def row(self, module: torch.nn.Module, caller: int) -> int:
        """The row of a module that row ``caller`` calls."""
        known = self._of.get(id(module))
        if known is not None and self.rows[known].module is module:
            return known
        if caller == 0:
            _, top = self._find(module)
            name, _ = self._find(top)
            self._add_all(top, name)
            if unwrap(module) is not module:  # DDP, a compiled module: the row of the model
                self._of[id(module)] = self._add(f"({type(module).__name__})", module, 0)
        known = self._of.get(id(module))
        if known is not None and self.rows[known].module is module:
            return known
        path = f"{self.rows[caller].path}.({type(module).__name__})".lstrip(".")
        return self._add(path, module, caller)

    def _add_all(self, top: torch.nn.Module, name: str) -> None:
        for path, module in walk(top, name):
            self._add(path, module, self._paths.get(path.rpartition(".")[0], 0))

    def _add(self, path: str, module: torch.nn.Module, parent: int) -> int:
        number = self._paths.get(path)
        if number is not None and self.rows[number].module in (None, module):
            self.rows[number] = Row(path, module, self.rows[number].parent)
        else:
            if number is not None:  # another module of this name
                path = f"{path}#{len(self.rows)}"
            number = self._paths[path] = len(self.rows)
            self.rows.append(Row(path, module, parent))
        self._of[id(module)] = number
        return number

    @property
    def are_exchanged(self) -> bool:
        """Whether a wrapper exchanges gradients between ranks in the backward pass."""
        classes = (type(row.module) for row in self.rows)
        return any(
            cls.__name__ in _EXCHANGING or cls.__name__.startswith("FSDP") for cls in classes
        )

    def ancestors(self, row: int) -> Iterator[int]:
        """The rows that hold it, from the inside."""
        while row:
            row = self.rows[row].parent
            if row:
                yield row


class LayerStep:
    """One step of one row.

    Attributes:
        calls, recomputed: calls in forward passes, and again in backward passes.
        inputs, outputs: shape and dtype of the tensors of its first call.
        flow_in, flow_out: the shapes of those that gradients flow through.
        varies: whether a later call has other shapes.
        arrivals, departures: sequence number of the node, and place, of each input and output that
            gradients flow through.
        found: whether an output was found to be not finite.
        forward, backward: FLOPs of nodes.
        untaped: forward FLOPs of calls that made no node.
        saved: bytes that are kept for backward passes and not yet freed.
        retained: the most of them at the end of a forward pass.
        grown_forward, grown_backward: bytes that the device allocated meanwhile.
    """

    __slots__ = (
        "arrivals", "backward", "calls", "departures", "flow_in", "flow_out", "forward", "found",
        "grown_backward", "grown_forward", "input_bytes", "inputs", "output_bytes", "outputs",
        "recomputed", "retained", "saved", "untaped", "varies",
    )  # fmt: skip

    def __init__(self) -> None:
        self.calls = self.recomputed = self.forward = self.backward = self.untaped = 0
        self.saved = self.retained = self.input_bytes = self.output_bytes = 0
        self.grown_forward = self.grown_backward = 0
        self.inputs: list[Form] | None = None
        self.outputs: list[Form] | None = None
        self.flow_in: list[list[int]] = []
        self.flow_out: list[list[int]] = []
        self.varies = False
        self.found = False
        self.arrivals: set[tuple[int, int]] = set()
        self.departures: set[tuple[int, int]] = set()


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in an argument or result: in tuples, lists, mappings, and plain objects."""
    if is_a(value, torch.Tensor):
        if not is_opaque(type(value)):
            yield value
    elif depth < _MOST_DEPTH:
        items = list(value) if type(value) is set else sequence_of(value)
        if items is None and (held := items_of(value)) is not None:
            items = [item for _, item in held]
        elif items is None and hasattr(type(value), "__dataclass_fields__"):
            items = list(own(value).values())
        for item in items or ():
            yield from tensors_in(item, depth + 1)


def flowing(tensors: list[torch.Tensor]) -> list[list[int]]:
    """The shapes of those that gradients flow through."""
    return [_form(tensor)[0] for tensor in tensors[:_MOST_FORMS] if tensor.requires_grad]


def forms(tensors: list[torch.Tensor]) -> list[Form]:
    """Shape and dtype of each."""
    return [_form(tensor) for tensor in tensors[:_MOST_FORMS]]


def _form(tensor: torch.Tensor) -> Form:
    tensor = as_plain(tensor)
    sizes = [] if tensor.is_nested else [int(size) for size in tensor.shape]
    return sizes, str(tensor.dtype).removeprefix("torch.")


def bytes_of(tensors: list[torch.Tensor]) -> int:
    """Bytes of their elements."""
    return sum(t.numel() * t.element_size() for t in map(as_plain, tensors) if not t.is_nested)
