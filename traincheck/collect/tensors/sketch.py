"""Linear sketches of tensors: 64 signed sums in float64, see schema/comparison/sketch.py.

Where an element goes is decided by its index in the whole tensor, in logical order. Indices are
divided into chunks. Within a chunk a table, made from a hash, holds four places for each index: one
in each group of 32, for 16 sums of either sign. From chunk to chunk, a hash of the number of the
chunk turns the places of each group and flips their signs.

Source of the hash: the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import torch

from traincheck.collect.tensors.devices import host, is_remote
from traincheck.collect.tensors.reading import FLOATS, as_plain, has_memory, local_of, unseen
from traincheck.handlers import give_back
from traincheck.schema.comparison.sketch import SIZE, encode

_CHUNK = 1 << 18  # indices in a table: 8 MiB for each device
_GROUPS, _SUMS = 4, 16
_PLACES = 2 * _SUMS  # of a group: the sum, and the sign in the lowest bit
_SMALL = 1 << 13  # elements that are copied, to save calls
_SCALE = 1 / _GROUPS**0.5  # a power of two, so that it rounds nothing
_COMPLEX = {torch.complex64, torch.complex128}
_WORD = (1 << 64) - 1
# Implemented in C: the modes and transforms of the program do not see what is computed here.
_no_dispatch = torch._C._DisableTorchDispatch
_no_transforms = torch._C._DisableFuncTorch


class Sketcher:
    """Sketches the tensors of one process."""

    def __init__(self) -> None:
        self._tables: dict[torch.device, torch.Tensor] = {}

    def numbers(self, tensor: torch.Tensor, offset: int = 0) -> torch.Tensor | None:
        """The sketch of a tensor, and the sum of its squares; None if it has no such numbers.

        Waits for no device.

        Args:
            tensor: of floating point or complex numbers, of any strides. Of a distributed tensor
                this rank's part is read, at its place in the whole.
            offset: index in the whole of the first element.

        Returns:
            65 numbers in float64 on the device of the tensor.
        """
        with unseen(), _no_dispatch(), _no_transforms():
            local = local_of(tensor)
            if local is not None:
                runs = _runs(tensor, local)
                return None if runs is None else self._added(runs)
            flat = _flat(as_plain(tensor))
            return None if flat is None else self._added(iter([(flat, offset)]))

    def text(self, tensor: torch.Tensor, offset: int = 0) -> bytes:
        """`finish` of the sketch of a tensor; b"" if it has none. Waits for its device."""
        found = self.numbers(tensor, offset)
        return b"" if found is None else finish(found.tolist())

    def _added(self, runs: Iterator[tuple[torch.Tensor, int]]) -> torch.Tensor | None:
        """The numbers of runs of elements with their first indices."""
        total = squares = None
        for flat, offset in runs:
            wide = flat.detach().to(torch.float64)
            found = self._sums(wide, offset)
            square = wide.dot(wide)
            total = found if total is None else total.add_(found)
            squares = square if squares is None else squares.add_(square)
        if total is None or squares is None:
            return None
        return torch.cat([total.mul_(_SCALE), squares.reshape(1)])

    def _sums(self, flat: torch.Tensor, offset: int) -> torch.Tensor:
        table, size = self._table(flat.device), flat.numel()
        total = torch.zeros(SIZE, dtype=torch.float64, device=flat.device)
        done = 0
        while done < size:
            number, first = divmod(offset + done, _CHUNK)
            count = min(size - done, _CHUNK - first)
            placed = _placed_sums(table[:, first : first + count], flat[done : done + count])
            if number:
                rows, own = total.view(_GROUPS, _SUMS), placed.view(_GROUPS, _SUMS)
                for group, (turn, sign) in enumerate(_turns(number)):
                    rows[group].add_(own[group].roll(turn), alpha=sign)
            else:
                total.add_(placed)
            done += count
        return total

    def _table(self, device: torch.device) -> torch.Tensor:
        """The places of the indices of a chunk: one row for each group."""
        table = self._tables.get(device)
        if table is None:
            index = torch.arange(_CHUNK, dtype=torch.int64, device="cpu")
            mixed = _mixed(index + 1)
            bits = _PLACES.bit_length() - 1
            rows = [
                ((mixed >> (bits * group)) & (_PLACES - 1)) + _PLACES * group
                for group in range(_GROUPS)
            ]
            table = self._tables[device] = torch.stack(rows).to(device)
        return table


def _placed_sums(places: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """The sums of a part of a chunk. places: of its elements, one row for each group."""
    sums = torch.zeros(_GROUPS * _PLACES, dtype=torch.float64, device=part.device)
    if part.numel() <= _SMALL:
        sums.scatter_add_(0, places.reshape(-1), part.repeat(_GROUPS))
    else:
        for row in places:
            sums.scatter_add_(0, row, part)
    return sums[0::2] - sums[1::2]


def read_sketches(values: Sequence[Any]) -> list[Any]:
    """``values`` with `finish` of the sketches among them, which are read from devices at once."""
    late = [v for v in values if isinstance(v, torch.Tensor) and v.dim()]
    if not late:
        return list(values)
    home = late[0].device
    rows = iter(host(torch.stack([sketch.to(home) for sketch in late])).tolist())
    return [finish(next(rows)) if isinstance(v, torch.Tensor) and v.dim() else v for v in values]


def finish(numbers: Sequence[float]) -> bytes:
    """The end of a summary: the norm among its numbers, and the sketch."""
    *sketch, squares = numbers
    finite = squares - squares == 0
    stats = {"norm": squares**0.5} if finite else {"nonfinite": 1}
    return b'%b,"sketch":"%b"' % (orjson.dumps(stats), encode(sketch).encode())


def _flat(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements in logical order; None if they are not numbers in memory."""
    if tensor.dtype in _COMPLEX and tensor.layout is torch.strided:
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    if tensor.dtype not in FLOATS or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    if tensor.is_meta or not tensor.numel() or not (tensor.is_cpu or is_remote(tensor)):
        return None
    if not has_memory(tensor):
        return None
    return tensor.detach().reshape(-1)


def _runs(whole: torch.Tensor, local: torch.Tensor) -> Iterator[tuple[torch.Tensor, int]] | None:
    """The part of a distributed tensor in runs that follow each other in the whole.

    None if the place of the part is not known.
    """
    flat = _flat(local)
    if flat is None:
        return None
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        placed: tuple[Sequence[int], Sequence[int]] = compute_local_shape_and_global_offset(
            whole.shape,
            whole.device_mesh,  # type: ignore[attr-defined]
            whole.placements,  # type: ignore[attr-defined]
        )
        shape, offsets = placed
    except Exception as error:  # another torch: this part is not sketched
        give_back(error)
        return None
    if tuple(shape) != tuple(local.shape):
        return None
    return _placed(flat, tuple(whole.shape), tuple(shape), tuple(offsets))


def _placed(
    flat: torch.Tensor, whole: Sequence[int], shape: Sequence[int], offsets: Sequence[int]
) -> Iterator[tuple[torch.Tensor, int]]:
    """Runs of a block of a tensor, with their first indices in the whole.

    Args:
        flat: the elements of the block.
        whole: sizes of the tensor.
        shape: sizes of the block.
        offsets: first index of the block in each dim.
    """
    strides = [1] * len(whole)
    for dim in range(len(whole) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * whole[dim + 1]
    inner = len(whole)  # dims from here on are whole, so that their elements follow each other
    while inner > 0 and shape[inner - 1] == whole[inner - 1]:
        inner -= 1
    inner = max(inner - 1, 0)
    size = 1
    for length in shape[inner:]:
        size *= length
    start = sum(offset * stride for offset, stride in zip(offsets[inner:], strides[inner:]))
    for run in range(flat.numel() // size if size else 0):
        first, left = start, run
        for dim in range(inner - 1, -1, -1):
            left, index = divmod(left, shape[dim])
            first += (offsets[dim] + index) * strides[dim]
        yield flat[run * size : (run + 1) * size], first


def _turns(chunk: int) -> Iterator[tuple[int, int]]:
    """For each group, by how many places it turns in a chunk, and its sign."""
    word = _mixed_number(chunk) if chunk else 0
    for _ in range(_GROUPS):
        yield word % _SUMS, 1 - 2 * (word // _SUMS % 2)
        word //= _PLACES


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """SplitMix64 of each word; products overflow as in unsigned arithmetic."""
    words = words * -7046029254386353131  # 0x9E3779B97F4A7C15
    words = (words ^ ((words >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    words = (words ^ ((words >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return words ^ ((words >> 31) & ((1 << 33) - 1))


def _mixed_number(word: int) -> int:
    """SplitMix64 of one word, unsigned."""
    word = word * 0x9E3779B97F4A7C15 & _WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)
