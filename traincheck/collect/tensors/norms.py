"""Norms of many tensors at once, and the number of their non-finite elements."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import orjson
import torch

from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.fingerprint import LOW
from traincheck.collect.tensors.readable import (
    FLOATS,
    FUNC,
    HALF,
    is_countable,
    is_included,
)
from traincheck.collect.tensors.reading import PLAIN_TYPES, modes

# Decides with one call into C, for nearly all tensors, whether they have a norm
_kind_of = attrgetter("is_cpu", "layout", "dtype", "is_nested", "requires_grad")
_address, _item = torch._C.TensorBase.data_ptr, torch._C.TensorBase.item
_data = attrgetter("data")
_Group = tuple[torch.device | None, bool, bool]  # device, in half, requires a gradient
_NEAR: dict[Any, _Group] = {
    (True, torch.strided, dtype, False, learns): (None, dtype in HALF, learns)
    for dtype in FLOATS
    for learns in (False, True)
}
_BETWEEN = b',"nonfinite":0} {"norm":'


def norms_of(tensors: list[torch.Tensor]) -> list[Any]:
    """The norm of each tensor, serialized, or on its device until `read_norms`; b"" for others.

    There are no side effects.
    """
    if not tensors or modes() or is_included(FUNC):
        return [b""] * len(tensors)
    if PLAIN_TYPES.issuperset(map(type, tensors)):
        kinds = list(map(_kind_of, tensors))
        group, are_alike = _NEAR.get(kinds[0]), kinds.count(kinds[0]) == len(kinds)
        if group is not None and are_alike and min(map(_address, tensors)) > LOW:
            return _norms(group, tensors)  # nearly always: found without a loop
    out: list[Any] = [b""] * len(tensors)
    groups: dict[_Group, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if has_norm(tensor):
            device = None if tensor.is_cpu else tensor.device
            group = device, tensor.dtype in HALF, tensor.requires_grad
            groups.setdefault(group, []).append(index)
    for group, indices in groups.items():
        for index, norm in zip(indices, _norms(group, [tensors[i] for i in indices])):
            out[index] = norm
    return out


def _norms(group: _Group, tensors: list[torch.Tensor]) -> list[Any]:
    device, is_half, learns = group
    chosen = list(map(_data, tensors)) if learns else tensors
    norms: Sequence[Any] = torch._foreach_norm(chosen, *((2, torch.float32) if is_half else ()))
    return _texts(list(map(_item, norms)), chosen) if device is None else list(norms)


def read_norms(norms: Sequence[Any]) -> list[bytes]:
    """The norms among ``norms`` that are still on devices, read at once; b"" elsewhere."""
    late = [norm for norm in norms if isinstance(norm, torch.Tensor)]
    if not late:
        return [b""] * len(norms)
    home = late[0].device
    numbers = host(torch.stack([norm.to(home, torch.float32) for norm in late])).tolist()
    texts = iter(_texts(numbers, [None] * len(late)))
    return [next(texts) if isinstance(norm, torch.Tensor) else b"" for norm in norms]


def _texts(norms: Sequence[float], tensors: Sequence[torch.Tensor | None]) -> list[bytes]:
    """Norms as numbers. tensors: for counting, if that only costs time."""
    data = orjson.dumps(norms)[1:-1]  # one call serializes all
    texts = (b'{"norm":%b,"nonfinite":0}' % data.replace(b",", _BETWEEN)).split(b" ")
    if b"null" not in data:
        return texts
    return [_broken(t) if b"null" in text else text for text, t in zip(texts, tensors)]


def _broken(tensor: torch.Tensor | None) -> bytes:
    """Numbers of a detached tensor whose norm is not finite."""
    if tensor is None:
        return b'{"nonfinite":1}'
    finite = tensor[torch.isfinite(tensor)].double()
    found = {"norm": float(finite.norm()), "nonfinite": tensor.numel() - finite.numel()}
    return orjson.dumps(found)


def has_norm(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` has floating point elements and can be read."""
    return type(tensor) in PLAIN_TYPES and tensor.dtype in FLOATS and is_countable(tensor)
