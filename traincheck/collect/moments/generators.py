"""The functions that seed and set random generators."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from traincheck.collect.tensors.devices import KIND, MODULE


def seeders() -> Iterator[tuple[Any, str, str]]:
    """Holder, name, and kind of the seeded generator; of numpy if it is loaded."""
    yield torch, "manual_seed", "torch"
    yield torch.random, "manual_seed", "torch"
    yield random, "seed", "python"
    if "numpy.random" in sys.modules:
        yield sys.modules["numpy.random"], "seed", "numpy"


def seeders_of_devices() -> Iterator[tuple[Any, str, str]]:
    """The same for generators of devices, which are also seeded with that of torch."""
    yield MODULE, "manual_seed", KIND
    yield MODULE, "manual_seed_all", KIND


def setters() -> Iterator[tuple[Any, str]]:
    """Holder and name of the functions that set a state."""
    yield torch, "set_rng_state"
    yield torch.random, "set_rng_state"
    yield MODULE, "set_rng_state"
    yield MODULE, "set_rng_state_all"
    yield random, "setstate"
    yield random.Random, "setstate"
    if "numpy.random" in sys.modules:
        yield sys.modules["numpy.random"], "set_state"
