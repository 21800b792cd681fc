"""Tensors that a node of the autograd graph keeps for the backward pass.

A tensor that a hook has packed is not unpacked: that may compute a layer again. Of a segment of
`torch.utils.checkpoint`, the inputs that it keeps are found instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from traincheck.collect.tensors.autograd_graph import CUSTOM
from traincheck.collect.tensors.reading import as_plain
from traincheck.handlers import give_back

_names: dict[type, tuple[str, ...]] = {}  # of the nodes of torch, one for each function
_SavedTensor: Any = torch._C._autograd.SavedTensor
_RAW = "_raw_saved_"
IS_READABLE = hasattr(_SavedTensor, "unpack_hook")


def saved_tensors(node: Any, packed: list[Any]) -> Iterator[torch.Tensor]:
    """The saved tensors of a node. packed: gets the hooks of those that are not given."""
    cls = type(node)
    if issubclass(cls, CUSTOM):  # of a program, whose classes are freed: all have the same names
        cls = CUSTOM
    names = _names.get(cls)
    if names is None:
        found = (name for name in dir(cls) if name.startswith(_RAW))
        names = _names[cls] = tuple(found)
    for name in names:
        raw = getattr(node, name)
        for one in raw if isinstance(raw, (tuple, list)) else (raw,):
            if one is None:
                continue
            if one.unpack_hook is not None:
                packed.append(one.unpack_hook)
                continue
            data = one.data
            if isinstance(data, torch.Tensor):
                yield data


def kept_inputs(unpack: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The inputs that a checkpointed segment keeps. seen: segments that were given already.

    `torch.utils.checkpoint` without ``use_reentrant`` keeps them in a node that no graph has; the
    hook that unpacks leads to it.
    """
    code, cells = getattr(unpack, "__code__", None), getattr(unpack, "__closure__", None)
    if code is None or not cells:
        return
    frame = dict(zip(code.co_freevars, cells)).get("frame")
    if frame is None or id(frame.cell_contents) in seen:
        return
    seen.add(id(frame.cell_contents))
    kept = getattr(frame.cell_contents, "saved_args", None)
    if kept is None:  # before torch 2.11
        saver = getattr(frame.cell_contents, "input_saver", None)
        node = getattr(saver, "grad_fn", None)
        kept = () if node is None else node._raw_saved_tensors
    for one in kept:
        if isinstance(one, _SavedTensor) and one.unpack_hook is None:
            yield one.data


def size_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Address and bytes of the memory of a tensor; None if it has none."""
    try:
        storage = as_plain(tensor).untyped_storage()
        return (storage.data_ptr(), storage.nbytes()) if storage.nbytes() else None
    except (NotImplementedError, RuntimeError) as error:  # subclasses, sparse tensors
        give_back(error)
        return None
