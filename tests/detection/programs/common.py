"""What the small programs share: settings, seeding, a digest to compare two runs bit for bit."""

import hashlib
import os
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch


def env(name: str, default: Any, cast: Callable[[str], Any] = str) -> Any:
    """The setting ``UP_<name>``, or the default when it is unset or empty."""
    value = os.environ.get("UP_" + name)
    return cast(value) if value else default


def seed_everything() -> None:
    """Seed three generators from ``UP_SEED``; one thread, so that sums have one order."""
    seed = env("SEED", 0, int)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)


def print_digest(*holders: Any, losses: Iterable[float] = ()) -> None:
    """Print digests of everything with a ``state_dict``, the losses, and the random generators.

    The next number of each is printed too, for people.
    """
    print("DIGEST weights", _digest([holder.state_dict() for holder in holders]))
    print("DIGEST losses", _digest(list(losses)))
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    for name, state in states.items():
        print("DIGEST", name, _digest(state))
    print("DRAWN", random.random(), np.random.rand(), torch.rand(()).item(), flush=True)


def _digest(value: Any) -> str:
    hasher = hashlib.sha256()
    _feed(hasher.update, value)
    return hasher.hexdigest()[:24]


def _feed(update: Callable[[bytes], Any], value: Any) -> None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous().reshape(-1).view(torch.uint8)
        update(f"{value.dtype}{tuple(value.shape)}{value.requires_grad}".encode())
        update(plain.numpy().tobytes())
    elif isinstance(value, np.ndarray):
        update(value.tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            update(str(key).encode())
            _feed(update, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _feed(update, item)
    else:
        update(repr(value).encode())
