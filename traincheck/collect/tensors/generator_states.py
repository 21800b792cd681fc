"""Read the states of the global random generators. Draws nothing and imports nothing.

Formats are in schema/comparison/generator_states.py.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from traincheck.collect.tensors import devices
from traincheck.collect.tensors.devices import is_capturing, is_used
from traincheck.collect.tensors.fingerprint import byte_view
from traincheck.handlers import give_back
from traincheck.schema.comparison.generator_states import WORDS, pack

_WORDS = struct.Struct(f"<{WORDS}I")
_MERSENNE = "MT19937"
_PYTHON_FIELDS, _NUMPY_FIELDS = 3, 5  # of the tuples that their functions return


def generator_states() -> Iterator[tuple[str, bytes]]:
    """Name and state of each global generator: torch, Python, numpy, and those of GPUs in use.

    numpy only if the program has imported it.
    """
    yield "torch", torch_bytes(torch.default_generator.get_state())
    yield "python", _of_python(*random.getstate()[1:])
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        state = _of_numpy(numpy)
        if state is not None:
            yield "numpy", state
    if is_used() and not is_capturing():
        for name, of_device in devices.generator_states():
            yield name, torch_bytes(of_device)


def _of_numpy(numpy: Any) -> bytes | None:
    """The state of the global generator of numpy; None if a program has set another kind."""
    try:
        state = numpy.get_state()
        return _of_numpy_state(*state)
    except (AttributeError, TypeError, ValueError) as error:  # half imported, or replaced
        give_back(error)
        return None


def _of_numpy_state(
    kind: Any, words: Any, position: Any, has_normal: Any, normal: Any
) -> bytes | None:
    if kind != _MERSENNE:
        return None
    little = words.astype("<u4", copy=False).tobytes()
    return pack(little, int(position), float(normal) if has_normal else None)


def _of_python(words: Any, normal: Any) -> bytes:
    return pack(_WORDS.pack(*words[:WORDS]), words[WORDS], normal)


def state_of(generator: Any) -> bytes | None:
    """The state of a generator on the CPU; None if it has another form."""
    if isinstance(generator, torch.Generator):
        return torch_bytes(generator.get_state()) if generator.device.type == "cpu" else None
    if isinstance(generator, random.Random):
        return _of_python(*generator.getstate()[1:])
    return _of_numpy(generator)


def twister_bytes(state: Sequence[Any]) -> tuple[str, bytes] | None:
    """Kind and bytes of what `random.getstate` or `numpy.random.get_state` returned.

    Lists are read as tuples: a file may have made them. None for anything else.
    """
    try:
        if len(state) == _PYTHON_FIELDS and type(state[0]) is int and len(state[1]) == WORDS + 1:
            return "python", _of_python(*state[1:])
        if len(state) == _NUMPY_FIELDS and type(state[0]) is str and len(state[1]) == WORDS:
            found = _of_numpy_state(*state)
            return None if found is None else ("numpy", found)
    except (AttributeError, TypeError, ValueError, struct.error) as error:  # not a state
        give_back(error)
    return None


def torch_bytes(state: torch.Tensor) -> bytes:
    """The bytes of a state of torch on the CPU."""
    return bytes(byte_view(state.numel())(state.data_ptr()))
