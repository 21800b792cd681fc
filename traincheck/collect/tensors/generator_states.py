"""Read the states of the global random generators. Draws nothing and imports nothing.

Formats are in schema/comparison/generator_states.py.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator
from typing import Any

import torch

from traincheck.collect.tensors.device_fingerprint import is_capturing
from traincheck.collect.tensors.fingerprint import byte_view
from traincheck.handlers import give_back
from traincheck.schema.comparison.generator_states import WORDS, pack

_WORDS = struct.Struct(f"<{WORDS}I")
_MERSENNE = "MT19937"


def generator_states() -> Iterator[tuple[str, bytes]]:
    """Name and state of each global generator: torch, Python, numpy, and those of GPUs in use.

    numpy only if the program has imported it.
    """
    yield "torch", _bytes(torch.default_generator.get_state())
    _, words, normal = random.getstate()
    yield "python", pack(_WORDS.pack(*words[:WORDS]), words[WORDS], normal)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        state = _of_numpy(numpy)
        if state is not None:
            yield "numpy", state
    yield from _of_devices()


def _of_numpy(numpy: Any) -> bytes | None:
    """The state of the global generator of numpy; None if a program has set another kind."""
    try:
        kind, words, position, has_normal, normal = numpy.get_state()
    except (AttributeError, TypeError, ValueError) as error:  # half imported, or replaced
        give_back(error)
        return None
    if kind != _MERSENNE:
        return None
    little = words.astype("<u4", copy=False).tobytes()
    return pack(little, int(position), float(normal) if has_normal else None)


def _of_devices() -> Iterator[tuple[str, bytes]]:
    if not torch.cuda.is_initialized() or is_capturing():  # type: ignore[no-untyped-call]
        return
    for index, generator in enumerate(torch.cuda.default_generators):
        name = f"cuda:{index}" if index else "cuda"
        yield name, _bytes(generator.get_state())  # seed and offset: the host has them


def _bytes(state: torch.Tensor) -> bytes:
    return bytes(byte_view(state.numel())(state.data_ptr()))
