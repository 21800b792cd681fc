"""Nodes of an autograd graph: names, sizes and inputs. Reads no saved tensor.

Reading a saved tensor runs the hooks that packed it, which may compute a whole layer again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from traincheck.handlers import give_back

# The base of nodes that programs define. Older torch does not have the sizes of inputs.
CUSTOM: type = getattr(torch._C, "_FunctionBase", object)
IS_TOLD = hasattr(CUSTOM, "_input_metadata")
_kinds: dict[type, str] = {}  # of the nodes of torch, one for each function
_WHOLE = frozenset({int})  # not the symbols that stand for sizes

Sizes = tuple[int, ...]


class Input(NamedTuple):
    """An input of a node: an output of another node. sizes: None if not known."""

    node: Any
    output: int
    sizes: Sizes | None


def kind(node: Any) -> str | None:
    """The part of its name before ``Backward``; None for a node that a program defined."""
    cls = type(node)
    found = _kinds.get(cls)
    if found is None and not issubclass(cls, CUSTOM):
        found = _kinds[cls] = cls.__name__.partition("Backward")[0]
    return found


def inputs(node: Any) -> list[Input | None]:
    """The inputs of a node by position; None for inputs that are not differentiated."""
    return [
        None if source is None else Input(source, index, _sizes(source, index))
        for source, index in node.next_functions
    ]


def signed(number: int) -> int:
    """Graphs store -1 as the largest number of 64 bits."""
    return number - 2**64 if number >= 2**63 else number


def _sizes(node: Any, index: int) -> Sizes | None:
    """Sizes of an output of a node; None if they are not whole numbers."""
    try:
        sizes = tuple(node._input_metadata[index].shape)
    except Exception as error:  # nested tensors have no sizes, undefined outputs have nothing
        give_back(error)
        return None
    return sizes if _WHOLE.issuperset(map(type, sizes)) else None
