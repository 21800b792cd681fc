"""Records of the present content of tensors: fingerprints and numbers.

On a device, work is started when a tensor is added, and read by `finish`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from traincheck.collect.tensors.checksum_numbers import Numbers, numbers_of
from traincheck.collect.tensors.device_fingerprint import PendingDigests, finish, read, start
from traincheck.collect.tensors.devices import host, is_capturing
from traincheck.collect.tensors.fingerprint import (
    components,
    fingerprint,
    hex128,
    local_part,
    seed_of_parts,
)
from traincheck.collect.tensors.reading import as_plain, requires_grad, unseen
from traincheck.collect.tensors.summarize import number, summarize_named


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
        with unseen():
            _read_numbers(numbers)
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
        local = local_part(tensor)
        whole, prefix = (as_plain(tensor), "") if local is None else (local, "shard-")
        if all(part.is_cpu for part in parts):
            summary["fingerprint"] = fingerprint(tensor)
        else:
            self._digests.append((summary, start(parts), seed_of_parts(whole, parts), prefix))


def _read_numbers(numbers: list[tuple[dict[str, Any], Numbers]]) -> None:
    """Put numbers into their records: of each device and dtype with one copy."""
    late: dict[tuple[torch.device, torch.dtype], list[tuple[dict[str, Any], str, Any]]] = {}
    for into, found in numbers:
        for name, value in found.items():
            if value.is_cpu:
                _put(into, name, value.item())
            else:
                late.setdefault((value.device, value.dtype), []).append((into, name, value))
    for waiting in late.values():
        read_values = host(torch.stack([value for _, _, value in waiting])).tolist()
        for (into, name, _), value in zip(waiting, read_values):
            _put(into, name, value)


def _put(into: dict[str, Any], name: str, value: float) -> None:
    """NaN is a value of the other numbers; a skew or kurtosis is then not defined."""
    if name not in ("skew", "kurt") or not math.isnan(value):
        into[name] = number(value)


def bytes_fingerprint(content: bytes) -> str:
    """The fingerprint of bytes that are no tensor."""
    return f"xxh3-128:{hex128(content)}"
