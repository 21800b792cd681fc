"""Exact, position-sensitive fingerprints of tensors.

Any changed bit, swapped row or flipped sign gives another fingerprint.

Three algorithms; only equal ones are compared. ``xxh3-128`` hashes CPU memory at memory speed.
``mix-128`` has the same properties for tensors on a device (device_fingerprint.py). ``probe`` reads
a few slices: a different probe proves a change, an equal one proves nothing. All include dtype and
shape.

Source: XXH3, https://xxhash.com.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
import xxhash

from traincheck.collect.tensors.device_fingerprint import finish, read, start
from traincheck.collect.tensors.devices import is_capturing
from traincheck.collect.tensors.reading import (
    PLAIN_TYPES,
    as_plain,
    detached,
    has_memory,
    is_a,
    is_foreign,
    local_of,
    modes,
    own,
    undispatched,
    unseen,
)

PROBE_SLICE = 256  # bytes; three slices: head, middle, tail
PROBED = 3 * PROBE_SLICE

hex128 = xxhash.xxh3_128_hexdigest
hash64 = xxhash.xxh3_64_intdigest
_hex64 = xxhash.xxh3_64_hexdigest


class _ByteViews(dict[int, Callable[[int], ctypes.Array[ctypes.c_char]]]):
    """``n -> function(address) -> buffer of n bytes``.

    Reads tensor memory of any dtype without numpy or a copy.
    """

    def __missing__(self, size: int) -> Callable[[int], ctypes.Array[ctypes.c_char]]:
        view = self[size] = (ctypes.c_char * size).from_address
        return view


class _Seeds(dict[tuple[torch.dtype, torch.Size], int]):
    """``(dtype, shape) -> seed``: makes both part of the fingerprint."""

    def __missing__(self, key: tuple[torch.dtype, torch.Size]) -> int:
        seed = self[key] = hash64(f"{key[0]}{tuple(key[1])}".encode())
        return seed


_ZEROS = memoryview(bytes(1 << 20))
_views = _ByteViews()
_seeds = _Seeds()


def row_fingerprints(tensor: torch.Tensor, count: int) -> list[str]:
    """A 64-bit digest of each of the first ``count`` rows of a plain CPU tensor.

    Equal samples in any batch have equal digests.
    """
    rows = tensor.shape[0]
    size = tensor.nbytes // rows if rows else 0
    count = min(rows, count)
    # Slices of one view: a third of the time of a view for each row
    whole = memoryview(_views[count * size](tensor.data_ptr()))
    starts = range(0, count * size, size) if size else [0] * count
    return [_hex64(whole[start : start + size]) for start in starts]


def byte_view(size: int) -> Callable[[int], Any]:
    """``address -> buffer of size bytes``."""
    return _views[size]


def seed_of(tensor: torch.Tensor) -> int:
    """The seed that makes dtype and shape part of a fingerprint."""
    return _seeds[tensor.dtype, tensor.shape]


def is_plain_cpu(tensor: torch.Tensor) -> bool:
    """Whether the elements are in CPU memory, in logical order, as plain bits."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
        and has_memory(tensor)
    )


def fingerprint(tensor: torch.Tensor) -> str | None:
    """The exact fingerprint of ``tensor``, ``<algorithm>:<32 hex digits>``; None without data.

    Waits for the device if the tensor is not on the CPU; `device_fingerprint.start` does not.
    """
    if type(tensor) in PLAIN_TYPES and is_plain_cpu(tensor):
        seed = _seeds[tensor.dtype, tensor.shape]
        return f"xxh3-128:{hex128(_views[tensor.nbytes](tensor.data_ptr()), seed)}"
    return _unusual(tensor)


_NO_SHAPE = torch.Size(())


def is_at_hand(tensor: torch.Tensor) -> bool:
    """Whether a fingerprint needs no device, and covers the tensor's own elements."""
    is_plain = type(tensor) in PLAIN_TYPES and tensor.is_cpu and tensor.layout is torch.strided
    return is_plain and has_memory(tensor)


def _unusual(tensor: torch.Tensor) -> str | None:
    with unseen():
        if modes():  # what subclasses of torch dispatch, a mode would see
            with undispatched():
                return _digested(tensor) if _is_direct(tensor) else None
        return _digested(tensor)


def _is_direct(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be read without a dispatch."""
    kind = type(tensor)
    return kind in PLAIN_TYPES or is_foreign(kind) or local_of(tensor) is not None


def _digested(tensor: torch.Tensor) -> str | None:
    whole = as_plain(tensor)
    if not whole.is_cpu and is_capturing():
        return None
    parts = components(tensor)
    if parts is None:
        return None
    if local_of(tensor) is not None:  # a shard: not comparable with that of a rank
        return f"shard-{fingerprint(parts[0])}"
    if len(parts) == 1 and parts[0].is_cpu:
        return f"xxh3-128:{_digest_cpu(parts[0], whole)}"
    if all(part.is_cpu for part in parts):
        joined = "".join(_digest_cpu(part, part) for part in parts).encode()
        return f"xxh3-128:{hex128(joined, _seed(whole))}"
    return finish(read([start(parts)])[0], seed_of_parts(whole, parts))


def _seed(tensor: torch.Tensor) -> int:
    """`seed_of`. The sizes of a nested tensor are among its parts."""
    return _seeds[tensor.dtype, _NO_SHAPE if tensor.is_nested else tensor.shape]


def seed_of_parts(tensor: torch.Tensor, parts: list[torch.Tensor]) -> int:
    """`seed_of` for several parts, each with dtype and shape."""
    seed = _seed(tensor)
    if len(parts) > 1:
        seed = hash64(repr([seed, *map(seed_of, parts)]).encode())
    return seed


def _digest_cpu(part: torch.Tensor, whole: torch.Tensor) -> str:
    plain = part.detach().resolve_conj().resolve_neg().contiguous()
    digest: str = hex128(_views[plain.nbytes](plain.data_ptr()), _seed(whole))
    return digest


def components(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The dense tensors that make up ``tensor``; None when it has no data (meta, fake, freed ...).

    Values and indices of a sparse tensor, rows and their sizes of a nested one, this rank's shard
    of a distributed one.
    """
    whole, tensor = tensor, as_plain(tensor)
    if tensor.is_meta or "FakeTensor" in type(tensor).__name__ or _stands_for_others(tensor):
        return None
    if whole is not tensor and not has_memory(tensor):  # the program's class holds others
        held = [value for value in own(whole).values() if is_a(value, torch.Tensor)]
        return _parts_of(held)
    local = local_of(tensor)  # without a collective
    if local is not None:
        return components(local)
    tensor = detached(tensor)
    if tensor.layout is torch.sparse_coo:
        coalesced = tensor.coalesce()
        return [coalesced.indices(), coalesced.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_nested and tensor.layout is torch.strided:
        return [tensor._nested_tensor_size(), *tensor.unbind()]
    if tensor.is_mkldnn:
        return [tensor.to_dense()]
    if tensor.layout is not torch.strided and not tensor.is_nested:
        return None
    return [tensor.int_repr()] if tensor.is_quantized else _dense(tensor)


_stands_for_others: Callable[[torch.Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda _: False
)  # inside torch.func


def _dense(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The tensor, or the tensors that a subclass consists of. It may have no memory."""
    if type(tensor) not in PLAIN_TYPES and hasattr(tensor, "__tensor_flatten__"):
        return _parts_of([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]])
    return [tensor.detach()] if has_memory(tensor) else None


def _parts_of(held: list[torch.Tensor]) -> list[torch.Tensor] | None:
    inner = [components(one) for one in held]
    if inner and None not in inner:
        return [part for parts in inner for part in parts or ()]
    return None


def slices(address: int, size: int) -> tuple[Any, ...]:
    """The parts of ``size`` bytes of memory that a probe reads. Valid as long as the memory."""
    if size <= PROBED:
        return (_views[size](address),)
    view = _views[PROBE_SLICE]
    middle = address + (size // 2 & ~63)
    return view(address), view(middle), view(address + size - PROBE_SLICE)


def probe(parts: tuple[Any, ...], seed: int) -> int:
    """A digest of `slices`: if it differs, the memory changed.

    An equal probe proves nothing, unless there are at most `PROBED` bytes: all are read then.
    """
    for part in parts:
        seed = hash64(part, seed)
    return seed


def zeros_digest(size: int, seed: int) -> str:
    """`fingerprint` of a plain tensor of ``size`` bytes that are all zero. No tensor is made."""
    state = xxhash.xxh3_128(seed=seed)
    for done in range(0, size, len(_ZEROS)):
        state.update(_ZEROS[: size - done])
    return f"xxh3-128:{state.hexdigest()}"


def zeros_probe(size: int, seed: int) -> int:
    """`probe` of such a tensor."""
    return probe((_ZEROS[:size],) if size <= PROBED else (_ZEROS[:PROBE_SLICE],) * 3, seed)


def holds_zeros(gradient: torch.Tensor) -> bool:
    """Whether all elements are zero, with whatever sign."""
    # Of a distributed tensor, this shard only, as its digest: counting all would need other ranks
    local = local_of(gradient)
    values = as_plain(gradient) if local is None else local
    if modes() and type(values) in PLAIN_TYPES:
        with undispatched():
            return _are_zeros(values.detach())
    return _are_zeros(values.detach())


def _are_zeros(values: torch.Tensor) -> bool:
    if values.layout is torch.sparse_coo:
        values = values.coalesce().values()
    if values.layout is torch.strided and not has_memory(values):
        return False
    return not bool(torch.count_nonzero(values))
