"""How many draws two states of a generator are apart."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import pytest

from traincheck.diff.generators import distance
from traincheck.schema.comparison.generator_states import pack


def state_after(draws: int, seed: int = 0) -> str:
    """The state of a generator of NumPy after some draws of 32 bits."""
    generator = np.random.MT19937(seed)
    if draws:
        generator.random_raw(draws)
    inner: Any = generator.state["state"]
    return base64.b64encode(pack(inner["key"].astype("<u4").tobytes(), inner["pos"], None)).decode()


@pytest.mark.parametrize("draws", [1, 2, 511, 623, 624, 625, 8192, 100_000])
def test_counts_draws_in_both_directions(draws: int) -> None:
    assert distance("numpy", state_after(7), state_after(7 + draws)) == draws
    assert distance("numpy", state_after(7 + draws), state_after(7)) == -draws


def test_equal_states_are_no_draw_apart() -> None:
    assert distance("numpy", state_after(9), state_after(9)) == 0


def test_another_seed_is_no_distance() -> None:
    assert distance("numpy", state_after(9), state_after(9, seed=1), most=10_000) is None


def test_a_limit_is_kept() -> None:
    assert distance("numpy", state_after(0), state_after(5000), most=1000) is None


def test_counts_draws_of_python() -> None:
    generator = random.Random(3)
    states = []
    for _ in range(2):
        *words, position = generator.getstate()[1]
        raw = b"".join(word.to_bytes(4, "little") for word in words)
        states.append(base64.b64encode(pack(raw, position, None)).decode())
        for _ in range(700):
            generator.getrandbits(32)
    assert distance("python", *states) == 700


def test_counts_draws_of_torch() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    states = [bytes(generator.get_state().numpy())]
    for size in (1, 511):
        torch.rand(size, generator=generator)
        states.append(bytes(generator.get_state().numpy()))
    texts = [base64.b64encode(state).decode() for state in states]
    assert distance("torch", texts[0], texts[1]) == 1
    assert distance("torch", texts[0], texts[2]) == 512


def test_counts_offsets_of_philox() -> None:
    states = [base64.b64encode(bytes(8) + n.to_bytes(8, "little")).decode() for n in (4, 16)]
    assert distance("cuda", *states) == 12
