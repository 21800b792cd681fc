"""The bytes of the states of random generators, as rng events of the view "diff" hold them.

``torch``: 5,056 bytes, those of `torch.get_rng_state()`.
``python`` and ``numpy``: 2,508 bytes, little-endian: 624 words of 32 bits, the position in them
(624: all are used), and the number that waits for the next normal draw, in float64; NaN if none
does.
``cuda`` and ``cuda:1``, of devices: 16 bytes, little-endian: the seed and the offset of Philox.

The first three are Mersenne Twisters. Nothing here imports torch.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

TWISTERS = ("torch", "python", "numpy")
WORDS = 624  # of 32 bits, in the state of a Mersenne Twister

_PLAIN = struct.Struct(f"<{WORDS}IId")
_REST = struct.Struct("<Id")
_TORCH = struct.Struct(f"<QiiQ{WORDS}Q")  # seed, draws left, is seeded, next word, words
_PHILOX = struct.Struct("<Qq")
_TORCH_BYTES = 5056


class Twister(NamedTuple):
    """The state of a Mersenne Twister.

    Attributes:
        words: 624 numbers of 32 bits.
        position: index of the word that is drawn next; 624 if new words must be made first.
    """

    words: tuple[int, ...]
    position: int


class Philox(NamedTuple):
    """The state of a generator on a GPU. offset: how much of its sequence is used."""

    seed: int
    offset: int


def pack(words: bytes, position: int, normal: float | None) -> bytes:
    """The bytes of the state of a generator of Python or of numpy.

    Args:
        words: 624 words of 32 bits, little-endian.
        position: as in `Twister`.
        normal: the number that waits for the next normal draw; None if none does.
    """
    return words + _REST.pack(position, float("nan") if normal is None else normal)


def twister(source: str, state: bytes) -> Twister:
    """The state of a generator of torch (on the CPU), Python or numpy.

    Raises:
        ValueError: the source is another one, or the state has another size.
    """
    try:
        if source == "torch":
            if len(state) != _TORCH_BYTES:
                raise ValueError(f"a state of torch of {len(state)} bytes")
            _, left, _, following, *words = _TORCH.unpack_from(state)
            return Twister(tuple(words), WORDS if left == 1 else following)
        if source in ("python", "numpy"):
            *words, position, _ = _PLAIN.unpack(state)
            return Twister(tuple(words), position)
    except struct.error as error:
        raise ValueError(f"not a state of {source}: {error}") from error
    raise ValueError(f"no Mersenne Twister: {source}")


def philox(state: bytes) -> Philox:
    """The state of a generator on a GPU.

    Raises:
        ValueError: the state has another size.
    """
    try:
        return Philox(*_PHILOX.unpack(state))
    except struct.error as error:
        raise ValueError(f"not a state of a GPU: {error}") from error


def fingerprint(source: str, state: bytes) -> str:
    """The fingerprint that an rng event has of a state; for torch, that of its tensor of bytes."""
    seed = 0
    if source not in ("python", "numpy"):
        seed = xxhash.xxh3_64_intdigest(f"torch.uint8({len(state)},)".encode())
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(state, seed)}"
