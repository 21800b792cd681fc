"""Fingerprints of tensors on devices: many are started together, and read together later.

``mix-128`` has the properties of a hash of the bytes, and consists of elementwise integer
operations and sums. Over words w of eight bytes at positions i, it is the sum of f(w, i) modulo
2**64, twice with different constants. For a fixed i, f is a bijection of w, so a single changed
word always changes the sum. Moved words change it because i enters f nonlinearly. The last word is
padded with zeros.

Each operation on a device is a launch, which costs the training thread some microseconds. So all
tensors of a scan are laid end to end and mixed together, in chunks: some forty launches for each
chunk. A chunk needs six times its size on the device while it is mixed, 100 MiB at most. A large
tensor that is not contiguous is copied in addition.

Source of the finalizer's constants: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

import torch
import xxhash

from traincheck.collect.tensors.devices import KIND, follow, host, stream
from traincheck.collect.tensors.reading import unseen

# Disables the modes and transforms of the program. Implemented in C, each is entered and left
# atomically, wherever a signal handler raises.
_no_dispatch = torch._C._DisableTorchDispatch
_no_transforms = torch._C._DisableFuncTorch
_CHUNK = 1 << 21  # words that are mixed at a time
_WORD = 8  # bytes
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Odd numbers, as signed ones: 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
_GOLDEN = (-7046029254386353131, -4658895280553007687)
_STIR = (-7723592293110705685, -8663945395140668459)  # 0x94D049BB133111EB, 0x87C37B91114253D5
_LOW_35 = (1 << 35) - 1
_LOW_32 = (1 << 32) - 1
_MODULUS = 1 << 64

Piece: TypeAlias = tuple[int, int, int]  # tensor, first word, number of words
Digest: TypeAlias = tuple[int, int, bool]  # two words, and whether all bits are zero


@dataclass(slots=True)
class PendingDigests:
    """Digests that devices are computing.

    Attributes:
        chunks: for each, the tensors of its pieces, and a row of three words for each piece. The
            words are two digests and the number of nonzero words, of all pieces up to this one.
        streams: the streams that got the work.
    """

    count: int
    chunks: list[tuple[list[int], torch.Tensor]] = field(default_factory=list)
    streams: set[Any] = field(default_factory=set)


def start(parts: Sequence[torch.Tensor], *, chunk: int = _CHUNK) -> PendingDigests:
    """Begin to digest dense, detached tensors, of any dtype and strides. Waits for no device.

    Their present content is read, even if the program writes to them next on the same stream.
    """
    started = PendingDigests(len(parts))
    with unseen(), _no_dispatch(), _no_transforms():
        for device in dict.fromkeys(part.device for part in parts):
            here = {i: p for i, p in enumerate(parts) if p.device == device and p.numel()}
            flat: dict[int, torch.Tensor] = {}
            for pieces in _pieces({i: -(-p.nbytes // _WORD) for i, p in here.items()}, chunk):
                # Copies are kept as long as a chunk needs them: of all of a model they would be two
                flat = {i: flat[i] if i in flat else _flat(here[i]) for i, _, _ in pieces}
                mixed = _mixed(_joined(pieces, flat, device), pieces, device)
                started.chunks.append(([owner for owner, _, _ in pieces], mixed))
            queue = stream(device)
            if queue is not None:
                started.streams.add(queue)
    return started


def read(batches: Sequence[PendingDigests]) -> list[list[Digest]]:
    """One digest for each tensor of each batch. Waits for the devices, with one copy from each."""
    with unseen(), _no_dispatch(), _no_transforms():
        sums: dict[torch.device, list[torch.Tensor]] = {}
        for batch in batches:
            for _, rows in batch.chunks:
                sums.setdefault(rows.device, []).append(rows)
        follow({queue for batch in batches for queue in batch.streams})
        found = {device: iter(host(torch.cat(rows)).tolist()) for device, rows in sums.items()}
        return [_added(batch, found) for batch in batches]


def _added(batch: PendingDigests, found: dict[torch.device, Iterator[list[int]]]) -> list[Digest]:
    """The digests of a batch, whose rows are next."""
    totals = [[0, 0, 0] for _ in range(batch.count)]
    for owners, sums in batch.chunks:
        before = [0, 0, 0]
        for owner, row in zip(owners, found[sums.device]):
            old = totals[owner]
            totals[owner] = [(t + new - was) % _MODULUS for t, new, was in zip(old, row, before)]
            before = row
    return [(one, other, not filled) for one, other, filled in totals]


def finish(digests: Sequence[Digest], seed: int) -> str:
    """The fingerprint of a tensor of such parts. seed: of its dtype and shape."""
    words = [word for one, other, _ in digests for word in (one, other)]
    packed = b"".join(word.to_bytes(_WORD, "little") for word in words)
    return f"mix-128:{xxhash.xxh3_128_hexdigest(packed, seed)}"


def _pieces(sizes: dict[int, int], chunk: int) -> Iterator[tuple[Piece, ...]]:
    """All words of tensors of these sizes, divided into chunks."""
    pieces: list[Piece] = []
    room = chunk
    for owner, size in sizes.items():
        first = 0
        while first < size:
            taken = min(size - first, room)
            pieces.append((owner, first, taken))
            first, room = first + taken, room - taken
            if not room:
                yield tuple(pieces)
                pieces, room = [], chunk
    if pieces:
        yield tuple(pieces)


def _flat(part: torch.Tensor) -> torch.Tensor:
    """The elements in logical order, as bits."""
    plain = part.resolve_conj().resolve_neg() if part.is_conj() or part.is_neg() else part
    if plain.element_size() == 1:
        plain = plain.view(torch.uint8)  # torch 2.4 copies no float8 where it must be deterministic
    plain = plain.contiguous()
    return plain.as_strided((plain.numel(),), (1,))  # a single element may have any stride


def _joined(
    pieces: tuple[Piece, ...], flat: dict[int, torch.Tensor], device: torch.device
) -> torch.Tensor:
    """The words of all pieces, one after the other."""
    bits = _WORD
    for data in flat.values():
        size = data.element_size()
        bits |= data.numel() * size | data.data_ptr() | int(data.storage_offset()) * size
    width = bits & -bits  # the widest integers that all of them can be read as: copies are faster
    integer, share = _INTEGERS[width], _WORD // width
    found: list[torch.Tensor] = []
    zeros = None
    for owner, first, count in pieces:
        data = flat[owner].view(integer)
        size = data.numel()
        if first or count * share < size:
            data = data[first * share : (first + count) * share]
        found.append(data)
        missing = -size % share
        if missing and (first + count) * share > size:
            if zeros is None:
                zeros = torch.zeros(share, dtype=integer, device=device)
            found.append(zeros[:missing])
    if width == _WORD and len(found) == 1:
        return found[0]
    return torch.cat(found).view(torch.int64)


def _mixed(words: torch.Tensor, pieces: tuple[Piece, ...], device: torch.device) -> torch.Tensor:
    """The rows of `PendingDigests` for one chunk."""
    first = pieces[0][1] + 1
    position = torch.arange(first, first + words.numel(), dtype=torch.int64, device=device)
    last = None
    if len(pieces) > 1:
        ends, shifts, last = _layout(pieces, first, device)
        position += shifts.index_select(0, torch.bucketize(position, ends))
    sums = [_sums(_lane(words, position, lane), last) for lane in (0, 1)]
    return torch.stack([*sums, _sums(words.ne(0), last)], dim=1)


def _layout(
    pieces: tuple[Piece, ...], start: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each piece: its end, with words counted from ``start``, and two more numbers.

    These are the number to add to get positions in its tensor, and the index of its last word.
    """
    ends = list(accumulate(count for _, _, count in pieces))
    shifts = [first + count + 1 - end - start for (_, first, count), end in zip(pieces, ends)]
    last = [end - 1 for end in ends]
    rows = [[at + start for at in last], shifts, last]
    table = torch.tensor(rows, dtype=torch.int64, device="cpu")
    # CUDA copies them at once; for other devices torch does not promise that
    table = table.to(device, non_blocking=device.type == KIND)
    return table[0], table[1], table[2]


def _lane(words: torch.Tensor, position: torch.Tensor, lane: int) -> torch.Tensor:
    mixed = position * _GOLDEN[lane]
    mixed ^= words
    mixed *= _STIR[lane]
    high = mixed >> 29
    high &= _LOW_35  # a logical shift, so that no bit is lost
    mixed ^= high
    mixed += position
    mixed *= _GOLDEN[1 - lane]
    torch.bitwise_right_shift(mixed, 32, out=high)
    high &= _LOW_32
    mixed ^= high
    return mixed


def _sums(values: torch.Tensor, last: torch.Tensor | None) -> torch.Tensor:
    """Sums of all words up to each of ``last``; of all words if there is one piece.

    Sums of integers are the same in any order, so torch does not call them nondeterministic.
    """
    if last is None:
        return values.sum(dtype=torch.int64).reshape(1)
    return values.cumsum(0, dtype=torch.int64).index_select(0, last)
