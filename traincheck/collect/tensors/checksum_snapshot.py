"""Records of the present content of tensors: fingerprints and numbers.

On a device, work is started when a tensor is added, and read by `finish`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from traincheck.collect.tensors.device_fingerprint import PendingDigests, finish, read, start
from traincheck.collect.tensors.devices import host, is_capturing, is_remote
from traincheck.collect.tensors.fingerprint import components, fingerprint, hex128, seed_of_parts
from traincheck.collect.tensors.reading import (
    FLOATS,
    INTS,
    PLAIN_TYPES,
    as_plain,
    detached,
    has_memory,
    local_of,
    modes,
    requires_grad,
    unseen,
)
from traincheck.collect.tensors.summarize import number, summarize_named
from traincheck.collect.tensors.sums import powers_about, wide_pieces

# Tensors of no dims, on the device of the tensor that they are about
Numbers: TypeAlias = Mapping[str, torch.Tensor]
_NARROW_FLOATS = frozenset(
    dtype
    for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
    if (dtype := getattr(torch, f"float8_{name}", None)) is not None
)


def numbers_of(tensor: torch.Tensor) -> Numbers:
    """The numbers of a tensor, in double precision; none where its elements cannot be read.

    Counts, median, mode and extremes are exact. Moments are taken in two passes, over pieces of
    bounded size. Nothing waits for a device, and the tensor is not kept.

    Empty, sparse, nested, quantized and complex tensors, and those on meta, have none. Keys are
    those of `traincheck.schema.checksums.NUMBERS`. `skew` and `kurt` of equal elements are NaN.
    """
    local = local_of(tensor)
    tensor = as_plain(tensor) if local is None else local
    if not _is_readable(tensor):
        return {}
    flat = detached(tensor).reshape(-1)
    if flat.dtype is torch.bool:
        flat = flat.to(torch.uint8)
    elif flat.dtype not in FLOATS and flat.dtype not in INTS:
        flat = flat.float()
    found = {"zeros": (flat == 0).sum()}
    if flat.is_floating_point():
        found["nans"] = torch.isnan(flat).sum()
        found["posinf"] = torch.isposinf(flat).sum()
        found["neginf"] = torch.isneginf(flat).sum()
    else:
        none = torch.zeros_like(found["zeros"])
        found.update(nans=none, posinf=none, neginf=none)
    return {**found, **_ordered(flat), **_moments(flat)}


def _is_readable(tensor: torch.Tensor) -> bool:
    dtype = tensor.dtype
    is_known = dtype in FLOATS or dtype in INTS or dtype is torch.bool or dtype in _NARROW_FLOATS
    return (
        is_known
        and type(tensor) in PLAIN_TYPES
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.numel() > 0
        and (tensor.is_cpu or is_remote(tensor))
        and not modes()
        and has_memory(tensor)
    )


def _ordered(flat: torch.Tensor) -> dict[str, torch.Tensor]:
    """Median (the lower of two), mode (the smallest of equally frequent elements), extremes.

    NaN is sorted last, and each NaN is an element that occurs once.
    """
    ordered = _sorted(flat)
    count = ordered.numel()
    found = {
        "med": ordered[(count - 1) // 2],
        "mode": _mode(ordered),
        "min": ordered[0],
        "max": ordered[-1],
    }
    if flat.is_floating_point():
        for name in ("med", "min"):
            found[name] = torch.where(torch.isnan(ordered[-1]), ordered[-1], found[name])
    # Not views, which would keep all elements
    return {name: value.clone() for name, value in found.items()}


def _mode(ordered: torch.Tensor) -> torch.Tensor:
    """The element of the first of the longest runs of equal elements."""
    if ordered.is_cpu:
        values, counts = torch.unique_consecutive(ordered, return_counts=True)
        most: torch.Tensor = values[counts.argmax()]
        return most
    # Without sizes that depend on values: these would wait for the device
    place = torch.arange(ordered.numel(), device=ordered.device)
    begins = torch.ones_like(place, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    start = torch.cummax(torch.where(begins, place, torch.zeros_like(place)), 0).values
    last = (place - start).argmax()
    return ordered.gather(0, last.reshape(1)).reshape(())


def _sorted(flat: torch.Tensor) -> torch.Tensor:
    """The elements in order, NaN last.

    On a CPU torch sorts integers nine times faster than floating point, and the bits of numbers,
    with those of negative ones inverted, have their order.
    """
    if not flat.is_cpu or not flat.is_floating_point():
        return torch.sort(flat).values
    whole = flat if flat.dtype is torch.float64 else flat.float()
    whole = torch.where(torch.isnan(whole), torch.full_like(whole[:1], torch.nan), whole)
    integer, most = (torch.int64, 63) if whole.dtype is torch.float64 else (torch.int32, 31)
    bits = whole.view(integer)
    keys = torch.sort(bits ^ ((bits >> most) & ((1 << most) - 1))).values
    return (keys ^ ((keys >> most) & ((1 << most) - 1))).view(whole.dtype)


def _moments(flat: torch.Tensor) -> dict[str, torch.Tensor]:
    """Moments around the mean. std and uvar are those of a sample, skew and kurt of this std."""
    count = flat.numel()
    zero = torch.zeros((), dtype=torch.float64, device=flat.device)
    total, absolute = zero, zero
    for wide in wide_pieces(flat):
        total = total + wide.sum()
        absolute = absolute + wide.abs().sum()
    mean = total / count
    _, second, third, fourth = powers_about(flat, mean, 4)
    sample = second / (count - 1) if count > 1 else torch.full_like(zero, torch.nan)
    std = sample.sqrt()
    return {
        "mean": mean,
        "amean": absolute / count,
        "std": std,
        "var": second / count,
        "uvar": sample,
        "skew": third / count / std**3,
        "kurt": fourth / count / std**4,
    }


class ChecksumSnapshot:
    """The records of one moment, or of several, in order.

    Args:
        has_numbers: whether numbers are taken beside fingerprints.
    """

    def __init__(self, *, has_numbers: bool = True) -> None:
        self._has_numbers = has_numbers
        self._records: list[dict[str, Any]] = []
        self._numbers: list[tuple[dict[str, Any], Numbers]] = []
        self._digests: list[tuple[dict[str, Any], PendingDigests, int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._records)

    def add(self, group: str, name: str, tensor: torch.Tensor, **fields: Any) -> None:
        """Add a tensor; its content of this moment counts."""
        with unseen():
            plain = as_plain(tensor)
            summary: dict[str, Any] = {
                "dtype": str(plain.dtype).removeprefix("torch."),
                "shape": [] if plain.is_nested else [int(size) for size in plain.shape],
                "device": str(plain.device),
            }
            if requires_grad(tensor):
                summary["requires_grad"] = True
            self._digest(summary, tensor)
            record = self._record(group, name, fields)
            record["summary"] = summary
            if self._has_numbers:
                record["numbers"] = {}
                self._numbers.append((record["numbers"], numbers_of(tensor)))

    def add_value(self, group: str, name: str, value: Any, **fields: Any) -> None:
        """Add a value that is no tensor, such as a number in the state of an optimizer."""
        self._record(group, name, fields)["data"] = {"value": summarize_named(name, value)}

    def add_data(self, group: str, name: str, data: dict[str, Any], **fields: Any) -> None:
        """Add values that are JSON already."""
        self._record(group, name, fields)["data"] = data

    def finish(self) -> list[dict[str, Any]]:
        """The fields of all records; the snapshot is empty then. Waits for devices."""
        records, self._records = self._records, []
        digests, self._digests = self._digests, []
        numbers, self._numbers = self._numbers, []
        for (summary, _, seed, prefix), found in zip(digests, read([one[1] for one in digests])):
            summary["fingerprint"] = prefix + finish(found, seed)
        with unseen():  # of each device and dtype with one copy
            late: dict[tuple[torch.device, torch.dtype], list[tuple[Any, str, torch.Tensor]]] = {}
            for into, taken in numbers:
                for name, value in taken.items():
                    if value.is_cpu:
                        _put(into, name, value.item())
                    else:
                        late.setdefault((value.device, value.dtype), []).append((into, name, value))
            for waiting in late.values():
                read_values = host(torch.stack([value for _, _, value in waiting])).tolist()
                for (into, name, _), read_value in zip(waiting, read_values):
                    _put(into, name, read_value)
        return records

    def _record(self, group: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        record = {"group": group, "name": name, **fields}
        self._records.append(record)
        return record

    def _digest(self, summary: dict[str, Any], tensor: torch.Tensor) -> None:
        if as_plain(tensor).is_cpu:
            found = fingerprint(tensor)
            if found is not None:
                summary["fingerprint"] = found
            return
        parts = None if is_capturing() else components(tensor)
        if not parts:
            return
        local = local_of(tensor)
        whole, prefix = (as_plain(tensor), "") if local is None else (local, "shard-")
        if all(part.is_cpu for part in parts):
            summary["fingerprint"] = fingerprint(tensor)
        else:
            self._digests.append((summary, start(parts), seed_of_parts(whole, parts), prefix))


def _put(into: dict[str, Any], name: str, value: float) -> None:
    """NaN is a value of the other numbers; a skew or kurtosis is then not defined."""
    if name not in ("skew", "kurt") or not math.isnan(value):
        into[name] = number(value)


def bytes_fingerprint(content: bytes) -> str:
    """The fingerprint of bytes that are no tensor."""
    return f"xxh3-128:{hex128(content)}"
