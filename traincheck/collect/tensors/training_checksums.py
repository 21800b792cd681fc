"""Checksums of optimizers and of random generators, for recordings and for callbacks."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from traincheck.collect.tensors.checksum_snapshot import ChecksumSnapshot, bytes_fingerprint
from traincheck.collect.tensors.device_fingerprint import is_capturing
from traincheck.collect.tensors.reading import groups_of, own, state_of
from traincheck.collect.tensors.summarize import dotted, summarize_named
from traincheck.schema.checksums import GENERATOR, SETTINGS, STATE

_MOST_DEPTH = 3  # of lists and mappings in the state of a parameter


def add_optimizer(
    snapshot: ChecksumSnapshot,
    owner: str,
    optimizer: torch.optim.Optimizer,
    name_of: Callable[[torch.Tensor], str],
) -> None:
    """Add the class, defaults, groups and state of an optimizer.

    Args:
        snapshot: gets the records.
        owner: id of the optimizer.
        optimizer: as it is now.
        name_of: the name of a parameter.
    """
    groups = [
        {**_plain(group), "params": [name_of(parameter) for parameter in group["params"]]}
        for group in groups_of(optimizer)
    ]
    data = {
        "type": dotted(type(optimizer)),
        "defaults": _plain(own(optimizer).get("defaults", {})),
        "param_groups": groups,
    }
    snapshot.add_data(SETTINGS, owner, data, owner=owner)
    for group in groups_of(optimizer):
        for parameter in group["params"]:
            # Not by index: that would create the state
            state = state_of(optimizer, parameter)
            if isinstance(state, Mapping):
                _add_state(snapshot, owner, name_of(parameter), state)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: summarize_named(key, value) for key, value in values.items() if key != "params"}


def _add_state(
    snapshot: ChecksumSnapshot, owner: str, path: str, value: Any, depth: int = 0
) -> None:
    if isinstance(value, torch.Tensor):
        snapshot.add(STATE, path, value, owner=owner)
    elif isinstance(value, Mapping) and depth < _MOST_DEPTH:
        for key, item in value.items():
            _add_state(snapshot, owner, f"{path}/{key}", item, depth + 1)
    elif isinstance(value, (list, tuple)) and depth < _MOST_DEPTH:
        for index, item in enumerate(value):
            _add_state(snapshot, owner, f"{path}/{index}", item, depth + 1)
    else:
        snapshot.add_value(STATE, path, value, owner=owner)


def add_generators(snapshot: ChecksumSnapshot) -> None:
    """Add the states of the generators of torch, CUDA, NumPy and Python. Draws nothing.

    Those of CUDA only if the program uses it, that of NumPy only if it is loaded.
    """
    snapshot.add(GENERATOR, "torch", torch.get_rng_state())
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if is_used and not is_capturing():
        snapshot.add(GENERATOR, "torch.cuda", torch.stack(torch.cuda.get_rng_state_all()))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        algorithm, state, position, has_gauss, gauss = numpy.get_state()
        data = {
            "algo": algorithm,
            "state": bytes_fingerprint(state.tobytes()),
            "pos": int(position),
            "has_gauss": int(has_gauss),
            "cached_gaussian": float(gauss),
        }
        snapshot.add_data(GENERATOR, "numpy", data)
    version, words, gaussian = random.getstate()
    packed = struct.pack(f"<{len(words)}Q", *words)
    data = {"version": version, "state": bytes_fingerprint(packed), "gaussian": gaussian}
    snapshot.add_data(GENERATOR, "python", data)
