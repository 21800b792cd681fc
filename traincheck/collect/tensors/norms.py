"""Norms of many tensors at once, and the number of their non-finite elements."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import orjson
import torch

from traincheck.collect.tensors.device_fingerprint import host
from traincheck.collect.tensors.fingerprint import LOW, PLAIN_TYPES
from traincheck.collect.tensors.readable import (
    FLOATS,
    FUNC,
    HALF,
    is_countable,
    is_included,
)
from traincheck.collect.tensors.reading import detached, modes

# Decides with one call into C, for nearly all tensors, whether they have a norm
_kind_of = attrgetter("__class__", "is_cpu", "layout", "dtype", "is_nested")
_NEAR: dict[Any, tuple[torch.device | None, bool]] = {
    (kind, True, torch.strided, dtype, False): (None, dtype in HALF)
    for kind in PLAIN_TYPES
    for dtype in FLOATS
}


def norms_of(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """For each tensor its numbers, serialized; on a device, a tensor to be read later.

    b"" if there are none.
    """
    out: list[Any] = [b""] * len(tensors)
    if modes() or is_included(FUNC):
        return out
    groups: dict[tuple[torch.device | None, bool], list[int]] = {}
    for index, tensor in enumerate(tensors):
        kind = _NEAR.get(_kind_of(tensor))
        if kind is None or tensor.data_ptr() <= LOW:
            if not has_norm(tensor):
                continue
            kind = None if tensor.is_cpu else tensor.device, tensor.dtype in HALF
        groups.setdefault(kind, []).append(index)
    for (device, is_half), indices in groups.items():
        chosen = [detached(tensors[i]) for i in indices]
        norms: Sequence[Any] = torch._foreach_norm(chosen, *((2, torch.float32) if is_half else ()))
        if device is None:
            norms = _texts([norm.item() for norm in norms], chosen)
        for index, norm in zip(indices, norms):
            out[index] = norm
    return out


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
    texts = orjson.dumps(norms)[1:-1].split(b",")  # one call serializes all
    return [
        _broken(tensor) if text == b"null" else b'{"norm":%b,"nonfinite":0}' % text
        for text, tensor in zip(texts, tensors)
    ]


def _broken(tensor: torch.Tensor | None) -> bytes:
    """Numbers of a detached tensor whose norm is not finite."""
    if tensor is None:
        return b'{"nonfinite":1}'
    finite = tensor[torch.isfinite(tensor)].double()
    found = {"norm": float(finite.norm()), "nonfinite": tensor.numel() - finite.numel()}
    return orjson.dumps(found)


def has_norm(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` has floating point elements and can be read."""
    return tensor.dtype in FLOATS and is_countable(tensor)
