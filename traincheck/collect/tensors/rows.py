"""Fingerprints of the rows of a batch, keyed with a secret of the run."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from random import Random
from typing import Any

import torch
import xxhash

from traincheck.collect.tensors.fingerprint import byte_view, is_plain_cpu
from traincheck.collect.tensors.reading import PLAIN_TYPES
from traincheck.schema.rows import UNKNOWN, WIDTH, row_places

_LABEL = 16  # bytes: rows of so few, such as labels, are remembered
_REMEMBERED = 4096
_WHOLE = 4096  # bytes: of larger rows, elements at fixed places are read
_READ = 64  # elements of a larger row
_TOLD = 4  # of them, so many differ from the first, or the row may be equal to others by chance
_BLOCK = 112  # bytes: more are digested before the keyed digest is taken
_MAX_SHAPES = 64

_digest = xxhash.xxh3_128_digest


class RowPrints:
    """Takes fingerprints of rows.

    They are keyed, so that a trace does not allow to look a row up in a data set.

    Args:
        key: the secret of the run, the same in all its processes.
    """

    def __init__(self, key: bytes) -> None:
        self._keyed = blake2b(key=key, digest_size=WIDTH // 2)
        self._labels: dict[bytes, str] = {}
        self._read: dict[tuple[int, int], torch.Tensor] = {}

    def of(self, leaves: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
        """The fingerprints by path, one text a tensor (schema/rows.py).

        Args:
            leaves: the tensors of a batch. Those that have as many rows as the first one count, if
                they are plain and on the CPU.
        """
        found: dict[str, bytes] = {}
        rows = 0
        for path, leaf in leaves.items():
            if not leaf.dim() or type(leaf) not in PLAIN_TYPES or not is_plain_cpu(leaf):
                continue
            count = leaf.shape[0]
            rows = rows or count
            if count == rows and leaf.nbytes:
                found[path] = self._of(leaf, rows).encode()
        return found

    def _of(self, leaf: torch.Tensor, rows: int) -> str:
        size = leaf.nbytes // rows
        if size > _WHOLE:
            return self._of_large(leaf, rows)
        whole: Any = memoryview(byte_view(leaf.nbytes)(leaf.data_ptr()))
        parts = [whole[place * size : (place + 1) * size] for place in row_places(rows)]
        if size <= _LABEL:
            known = self._labels
            return "".join([known.get(part) or self._remember(part) for part in map(bytes, parts)])
        return "".join([self._print(part) for part in parts])

    def _of_large(self, leaf: torch.Tensor, rows: int) -> str:
        """Reads 64 elements of each row, which may be constant there, as the border of an image."""
        read = self._read.get((rows, leaf.numel()))
        if read is None:
            if len(self._read) >= _MAX_SHAPES:
                self._read.clear()
            size = leaf.numel() // rows
            drawn = Random(size)  # not the generator of the program
            places = sorted(drawn.sample(range(size), min(_READ, size)))
            read = torch.tensor(
                [row * size + place for row in row_places(rows) for place in places], device="cpu"
            )
            self._read[rows, leaf.numel()] = read
        picked = leaf.detach().view(-1).index_select(0, read)
        content = bytes(memoryview(byte_view(picked.nbytes)(picked.data_ptr())))
        item = leaf.element_size()
        size = picked.nbytes // len(row_places(rows))
        parts = [content[start : start + size] for start in range(0, len(content), size)]
        most = (size // item - _TOLD) * item
        return "".join(
            [
                UNKNOWN if part.count(part[:item]) * item > most else self._print(part)
                for part in parts
            ]
        )

    def _print(self, part: Any) -> str:
        keyed = self._keyed.copy()
        keyed.update(part if len(part) <= _BLOCK else _digest(part))
        return keyed.hexdigest()

    def _remember(self, part: bytes) -> str:
        if len(self._labels) >= _REMEMBERED:
            self._labels.clear()
        found = self._labels[part] = self._print(part)
        return found
