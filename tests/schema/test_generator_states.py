"""States of generators, parsed without torch: they go on as the generators do."""

from __future__ import annotations

import random
from base64 import b64encode

import numpy as np
import pytest
import torch

from traincheck.collect.tensors.fingerprint import fingerprint as of_tensor
from traincheck.collect.tensors.generator_states import generator_states
from traincheck.schema.comparison.generator_states import (
    WORDS,
    Twister,
    fingerprint,
    philox,
    twister,
)


@pytest.fixture(autouse=True)
def generators():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    yield
    torch.set_rng_state(before[0])
    random.setstate(before[1])
    np.random.set_state(before[2])


def going_on(state: Twister) -> np.random.RandomState:
    generator = np.random.RandomState()
    generator.set_state(("MT19937", np.array(state.words, dtype=np.uint32), state.position))
    return generator


def states() -> dict[str, bytes]:
    return dict(generator_states())


@pytest.mark.parametrize("draws", [0, 1, 5, 623, 624, 625, 2000])
def test_torch(draws: int) -> None:
    torch.rand(draws)
    state = twister("torch", states()["torch"])
    word = int(going_on(state).randint(0, 1 << 32, dtype=np.uint32))
    assert torch.rand(1).item() == (word & ((1 << 24) - 1)) / (1 << 24)


@pytest.mark.parametrize("draws", [0, 1, 312, 700])
def test_python_and_numpy(draws: int) -> None:
    for _ in range(draws):
        random.random()
    np.random.random_sample(draws)
    found = states()
    assert going_on(twister("python", found["python"])).random_sample() == random.random()
    assert going_on(twister("numpy", found["numpy"])).random_sample() == np.random.random_sample()


def test_a_normal_number_that_waits_is_part_of_the_state() -> None:
    one = states()
    np.random.standard_normal()
    random.gauss(0, 1)
    other = states()
    np.random.set_state((*np.random.get_state()[:3], 0, 0.0))
    third = states()
    assert one["numpy"][-8:] != other["numpy"][-8:]
    assert one["python"][-8:] != other["python"][-8:]
    assert third["numpy"][:-8] == other["numpy"][:-8]
    assert fingerprint("numpy", third["numpy"]) != fingerprint("numpy", other["numpy"])


def test_reading_draws_nothing() -> None:
    before = states()
    assert states() == before
    torch.rand(1)
    after = states()
    assert [name for name in before if before[name] != after[name]] == ["torch"]


def test_the_fingerprint_of_torch_is_that_of_its_tensor() -> None:
    assert fingerprint("torch", states()["torch"]) == of_tensor(torch.get_rng_state())


def test_another_kind_of_numpy_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "numpy" in states()
    monkeypatch.setattr(np.random, "get_state", lambda: {"bit_generator": "PCG64"})
    assert "numpy" not in states()


def test_philox() -> None:
    state = (7).to_bytes(8, "little") + (4096).to_bytes(8, "little")
    assert philox(state) == (7, 4096)
    with pytest.raises(ValueError, match="not a state of a GPU"):
        philox(b64encode(state))


@pytest.mark.parametrize("source", ["torch", "python", "numpy", "cuda", "jax"])
def test_states_of_other_sizes_are_rejected(source: str) -> None:
    with pytest.raises(ValueError, match=r"state|Twister"):
        twister(source, b"0" * 16)


def test_positions() -> None:
    torch.manual_seed(1)
    assert twister("torch", states()["torch"]).position == WORDS
    torch.rand(1)
    assert twister("torch", states()["torch"]).position == 1
