"""Nodes of an autograd graph: names, sizes and what flows in. Touches no saved tensor.

To read one runs the hooks that a program packed it with, which may compute a whole layer again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from traincheck.handlers import give_back

# The base of nodes that programs write. Older torch does not tell the sizes of what flows in.
_CUSTOM: type = getattr(torch._C, "_FunctionBase", object)
IS_TOLD = hasattr(_CUSTOM, "_input_metadata")
_kinds: dict[type, str] = {}  # of the nodes of torch, which are as many as its functions
_WHOLE = frozenset({int})  # not the symbols that stand for sizes

Sizes = tuple[int, ...]


class Input(NamedTuple):
    """What flows into a node: which output of which other node. sizes: None if not told."""

    node: Any
    output: int
    sizes: Sizes | None


def kind(node: Any) -> str | None:
    """The part of its name before ``Backward``; None of a node that a program wrote."""
    cls = type(node)
    found = _kinds.get(cls)
    if found is None and not issubclass(cls, _CUSTOM):
        found = _kinds[cls] = cls.__name__.partition("Backward")[0]
    return found


def inputs(node: Any) -> list[Input | None]:
    """What flows into a node, by its place; None what is not differentiated."""
    return [
        None if source is None else Input(source, index, _sizes(source, index))
        for source, index in node.next_functions
    ]


def signed(number: int) -> int:
    """Graphs keep -1 as the largest number of 64 bits."""
    return number - 2**64 if number >= 2**63 else number


def _sizes(node: Any, index: int) -> Sizes | None:
    """Sizes of an output of a node; None where they are no whole numbers."""
    try:
        sizes = tuple(node._input_metadata[index].shape)
    except Exception as error:  # nested tensors have no sizes, undefined outputs nothing at all
        give_back(error)
        return None
    return sizes if _WHOLE.issuperset(map(type, sizes)) else None
