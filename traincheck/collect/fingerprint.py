"""Exact, position-sensitive fingerprints of tensors.

Any changed bit, swapped row or flipped sign gives another one.

Three algorithms; only equal ones are compared. ``xxh3-128`` hashes CPU memory at memory speed.
``mix-128`` is the same promise for tensors on a device, made of elementwise integer operations and
one sum. ``probe`` reads a few slices: a differing probe proves a change, an equal one proves
nothing. All include dtype and shape.

Sources: XXH3, https://xxhash.com; the finalizer constants of ``mix-128`` are those of SplitMix64
(Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
import xxhash

EXACT_CPU = "xxh3-128"
EXACT_DEVICE = "mix-128"

PROBE_SLICE = 256  # bytes; three slices: head, middle, tail
PROBED = 3 * PROBE_SLICE
LOW = 1 << 32  # above it lies nearly all that is allocated; of freed memory an offset is left
_CHUNK = 1 << 22  # words that one pass of mix-128 holds in memory at a time

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


_views = _ByteViews()
_seeds = _Seeds()


def row_fingerprints(tensor: torch.Tensor, count: int) -> list[str]:
    """A 64-bit digest of each of the first ``count`` rows of a plain CPU tensor.

    Equal samples in any batch have equal ones.
    """
    rows = tensor.shape[0]
    size = tensor.nbytes // rows if rows else 0
    count = min(rows, count)
    # Slices of one view: a third of the time that a view of each row takes
    whole = memoryview(_views[count * size](tensor.data_ptr()))
    return [_hex64(whole[i * size : i * size + size]) for i in range(count)]


def byte_view(size: int) -> Callable[[int], Any]:
    """``address -> buffer of size bytes``."""
    return _views[size]


def seed_of(tensor: torch.Tensor) -> int:
    """What makes dtype and shape part of a fingerprint."""
    return _seeds[tensor.dtype, tensor.shape]


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether the elements of a dense tensor lie anywhere.

    Sharding and offloading give the memory of a parameter back and leave its shape: what then reads
    it ends the process.
    """
    try:
        if tensor.data_ptr() > LOW or not tensor.numel():
            return True
        return tensor.untyped_storage().nbytes() > 0
    except (RuntimeError, NotImplementedError):  # inside torch.func: it stands for others
        return False


def is_plain_cpu(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in CPU memory in logical order, as their bits say."""
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

    Waits for the device when the tensor is not on the CPU; `start_device` does not.
    """
    if type(tensor) in PLAIN_TYPES and is_plain_cpu(tensor):
        seed = _seeds[tensor.dtype, tensor.shape]
        return f"xxh3-128:{hex128(_views[tensor.nbytes](tensor.data_ptr()), seed)}"
    return _unusual(tensor)


_NO_SHAPE = torch.Size(())
PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def is_at_hand(tensor: torch.Tensor) -> bool:
    """Whether a fingerprint waits for no device, and tells of the tensor's own elements."""
    is_plain = type(tensor) in PLAIN_TYPES and tensor.is_cpu and tensor.layout is torch.strided
    return is_plain and has_memory(tensor)


def _unusual(tensor: torch.Tensor) -> str | None:
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        parts = components(tensor)
        if parts is None:
            return None
        if hasattr(tensor, "_local_tensor"):  # a piece: not to be compared with that of a rank
            return f"shard-{fingerprint(parts[0])}"
        if len(parts) == 1 and parts[0].is_cpu:
            return f"xxh3-128:{_digest_cpu(parts[0], tensor)}"
        if all(part.is_cpu for part in parts):
            joined = "".join(_digest_cpu(part, part) for part in parts).encode()
            return f"xxh3-128:{hex128(joined, _seed(tensor))}"
        digests = [start_device(part) for part in parts]
        words = [word for digest in digests for word in digest.tolist()]
        return finish_device(words, tensor)


def _seed(tensor: torch.Tensor) -> int:
    """As `seed_of`. The sizes of a nested one are among its parts."""
    return _seeds[tensor.dtype, _NO_SHAPE if tensor.is_nested else tensor.shape]


def _digest_cpu(part: torch.Tensor, whole: torch.Tensor) -> str:
    plain = part.detach().resolve_conj().resolve_neg().contiguous()
    digest: str = hex128(_views[plain.nbytes](plain.data_ptr()), _seed(whole))
    return digest


def components(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The dense tensors that make up ``tensor``; None when it has no data (meta, fake, freed ...).

    Values and indices of a sparse one, rows and their sizes of a nested one, this rank's shard of a
    distributed one.
    """
    if tensor.is_meta or "FakeTensor" in type(tensor).__name__ or _stands_for_others(tensor):
        return None
    local = getattr(tensor, "_local_tensor", None)  # DTensor: this shard, without a collective
    if isinstance(local, torch.Tensor):
        return components(local)
    if tensor.layout is torch.sparse_coo:
        coalesced = tensor.detach().coalesce()
        return [coalesced.indices(), coalesced.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_nested and tensor.layout is torch.strided:
        return [tensor._nested_tensor_size(), *tensor.detach().unbind()]
    if tensor.is_mkldnn:
        return [tensor.detach().to_dense()]
    if tensor.layout is not torch.strided and not tensor.is_nested:
        return None
    return [tensor.int_repr()] if tensor.is_quantized else _dense(tensor)


_stands_for_others: Callable[[torch.Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda _: False
)  # inside torch.func


def _dense(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The tensor, or those that one of another class is made of: it may have no memory."""
    if type(tensor) not in PLAIN_TYPES and hasattr(tensor, "__tensor_flatten__"):
        inner = [components(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]]
        if inner and None not in inner:
            return [part for parts in inner for part in parts or ()]
        return None
    return [tensor.detach()] if has_memory(tensor) else None


def slices(address: int, size: int) -> tuple[Any, ...]:
    """The parts of ``size`` bytes of memory that a probe reads. Valid while that memory is."""
    if size <= PROBED:
        return (_views[size](address),)
    view = _views[PROBE_SLICE]
    middle = address + (size // 2 & ~63)
    return view(address), view(middle), view(address + size - PROBE_SLICE)


def probe(parts: tuple[Any, ...], seed: int) -> int:
    """A digest of `slices`: if it differs, the memory changed.

    If it is equal nothing is known, unless there are at most `PROBED` bytes: those are all read.
    """
    for part in parts:
        seed = hash64(part, seed)
    return seed


# mix-128: sum over words w at position i of f(w, i) modulo 2**64, twice with different constants.
# For a fixed i, f is a bijection of w, so a single changed word always shows; moved words change
# because i enters f nonlinearly. Odd numbers, as signed ones.
_GOLDEN = (-7046029254386353131, -4658895280553007687)  # 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
_STIR = (-7723592293110705685, -8663945395140668459)  # 0x94D049BB133111EB, 0x87C37B91114253D5
_LOW_35 = (1 << 35) - 1
_LOW_32 = (1 << 32) - 1


def start_device(part: torch.Tensor) -> torch.Tensor:
    """Two int64 words on the device of ``part`` (dense, any dtype and strides), without waiting."""
    words = _as_words(part)
    total = torch.zeros(2, dtype=torch.int64, device=part.device)
    for first in range(0, words.numel(), _CHUNK):
        chunk = words[first : first + _CHUNK].to(torch.int64)
        position = torch.arange(
            first + 1, first + 1 + chunk.numel(), dtype=torch.int64, device=part.device
        )
        for lane in (0, 1):
            mixed = (chunk ^ (position * _GOLDEN[lane])) * _STIR[lane]
            # masked: a logical shift, so that no bit is lost
            mixed = mixed ^ ((mixed >> 29) & _LOW_35)
            mixed = (mixed + position) * _GOLDEN[1 - lane]
            mixed = mixed ^ ((mixed >> 32) & _LOW_32)
            total[lane] += mixed.sum()
    return total


def _as_words(part: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor as a flat integer tensor of its element width (eight bytes at most)."""
    plain = part.detach().resolve_conj().resolve_neg().contiguous().flatten()
    if plain.dtype.is_complex:
        plain = torch.view_as_real(plain).flatten()
    width = plain.element_size()
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    return plain.view(integer)


def finish_device(words: list[int], tensor: torch.Tensor) -> str:
    """The fingerprint from the words that `start_device` left on the device."""
    packed = b"".join((word & (1 << 64) - 1).to_bytes(8, "little") for word in words)
    return f"mix-128:{hex128(packed, _seed(tensor))}"
