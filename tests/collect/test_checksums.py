"""Checksums of a step: exact numbers of what the optimizer finds, and training is the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.collect.checksum_reference import reference
from tests.collect.recording import Recording, recording
from traincheck.collect.instruments.comparison import Checksums
from traincheck.collect.tensors import sums
from traincheck.collect.tensors.checksum_snapshot import ChecksumSnapshot, numbers_of
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.schema.checksums import NUMBERS

# -- numbers


def recorded(tensor: torch.Tensor) -> dict[str, float]:
    snapshot = ChecksumSnapshot()
    snapshot.add("parameter", "x", tensor)
    (record,) = snapshot.finish()
    return {name: float(value) for name, value in record["numbers"].items()}


def agree(found: dict[str, float], expected: dict[str, float], tolerance: float = 1e-9) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=tolerance, abs=1e-12, nan_ok=True), name


FLOATS = st.lists(st.floats(-100, 100, width=32) | st.sampled_from([0.0, 1.0, -2.5]), min_size=2)


@given(FLOATS)
def test_numbers_of_floats_are_those_of_their_definitions(values: list[float]) -> None:
    tensor = torch.tensor(values)
    expected = reference(tensor)
    if 0 < expected["std"] < 1e-6 * max(map(abs, values)):
        return  # powers of tiny spreads: both are rounding
    agree(recorded(tensor), expected, 1e-6)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=40))
def test_numbers_of_integers_are_exact(values: list[int]) -> None:
    agree(recorded(torch.tensor(values)), reference(torch.tensor(values)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.uint8])
def test_numbers_of_other_dtypes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensor = (torch.randn(7, 5) * 20).abs().to(dtype)
    agree(recorded(tensor), reference(tensor))
    assert recorded(tensor.t()) == recorded(tensor.t().contiguous())


@pytest.mark.parametrize(
    "values", [[math.nan, 1.0, 1.0], [math.inf, -math.inf, 2.0], [math.inf, 0.0], [math.nan] * 2]
)
def test_numbers_that_are_not_finite(values: list[float]) -> None:
    tensor = torch.tensor(values)
    expected, found = reference(tensor), recorded(tensor)
    for name in ("posinf", "neginf", "nans", "zeros", "med", "mode", "min", "max", "mean"):
        assert found[name] == pytest.approx(expected[name], nan_ok=True), name
    assert not {"skew", "kurt"} & found.keys()


def test_large_integers_are_not_rounded() -> None:
    tensor = torch.tensor([2**62 + 1, 2**62 + 1, -(2**60) - 3])
    found = ChecksumSnapshot()
    found.add("buffer", "x", tensor)
    numbers = found.finish()[0]["numbers"]
    assert (numbers["mode"], numbers["min"]) == (2**62 + 1, -(2**60) - 3)


def test_pieces_give_the_numbers_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(1000) + 3
    whole = recorded(tensor)
    monkeypatch.setattr(sums, "_WIDE_PIECE", 64)
    agree(recorded(tensor), whole, 1e-12)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3),
        torch.ones(2, 2).to_sparse(),
        torch.ones(2, dtype=torch.complex64),
        torch.empty(3, device="meta"),
    ],
    ids=["empty", "sparse", "complex", "meta"],
)
def test_tensors_without_numbers_still_have_a_record(tensor: torch.Tensor) -> None:
    assert not numbers_of(tensor)
    snapshot = ChecksumSnapshot()
    snapshot.add("buffer", "x", tensor)
    (record,) = snapshot.finish()
    assert record["summary"].get("fingerprint") == fingerprint(tensor)


def test_bool_and_narrow_floats_have_numbers() -> None:
    assert recorded(torch.tensor([True, False, True]))["mode"] == 1
    narrow = torch.tensor([1.0, 2.0, 2.0]).to(torch.float8_e4m3fn)
    agree(recorded(narrow), reference(narrow.float()))


def test_every_number_is_taken_and_documented() -> None:
    assert set(numbers_of(torch.randn(5))) == set(NUMBERS)


# -- the state that the optimizer finds


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.frozen, self.last = nn.Linear(8, 8), nn.Linear(8, 2).bfloat16()
        self.frozen.requires_grad_(False)
        self.tied = self.last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.frozen(self.norm(self.first(x))).relu()
        result: torch.Tensor = self.last(hidden.bfloat16())
        return result.float()


Seen = dict[str, str | None]


def train(
    steps: int, watch: Callable[[int, nn.Module, Any], None] | None = None
) -> tuple[list[torch.Tensor], Any]:
    """A loop; ``watch`` is called before each update. Returns weights and generator states."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(8 * steps, 4), torch.randint(0, 2, (8 * steps,)))
    for step, (x, y) in enumerate(DataLoader(data, batch_size=8, shuffle=True)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if watch is not None:
            watch(step, model, optimizer)
        optimizer.step()
    states = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
    return [p.detach().clone() for p in model.parameters()], states


def by_name(run: Recording, group: str, step: int) -> dict[str, Any]:
    return {e.name: e for e in run.of("checksum") if e.group == group and e.step == step}


def test_records_are_what_the_optimizer_finds(tmp_path: Path) -> None:
    expected: dict[int, dict[str, Seen]] = {}

    def watch(step: int, model: nn.Module, optimizer: Any) -> None:
        named = dict(model.named_parameters())
        expected[step] = {
            "parameter": {f"Net.{n}": fingerprint(p) for n, p in named.items()},
            "gradient": {
                f"Net.{n}": fingerprint(p.grad) for n, p in named.items() if p.grad is not None
            },
            "buffer": {f"Net.{n}": fingerprint(b) for n, b in model.named_buffers()},
            "optimizer_state": {
                f"Net.{n}/{key}": fingerprint(value)
                for n, p in named.items()
                for key, value in optimizer.state.get(p, {}).items()
            },
            "generator": {"torch": fingerprint(torch.get_rng_state())},
        }

    with recording(tmp_path, checksums="all") as run:
        train(4, watch)
    assert len(expected) == 4
    for step, groups in expected.items():
        for group, wanted in groups.items():
            found = by_name(run, group, step)
            told = {n: e.summary.fingerprint for n, e in found.items() if e.summary is not None}
            assert told == wanted, (step, group)
    assert set(by_name(run, "gradient", 2)) == set(expected[2]["gradient"])
    assert "Net.frozen.weight" not in by_name(run, "gradient", 2)
    assert by_name(run, "parameter", 2)["Net.last.weight"].summary.dtype == "bfloat16"
    assert set(by_name(run, "generator", 0)) == {"torch", "numpy", "python"}
    assert set(by_name(run, "batch", 3)) == {"batch[0]", "batch[1]"}
    assert by_name(run, "batch", 3)["batch[0]"].data == {"index": 3}
    settings = by_name(run, "optimizer", 1)["opt0"].data
    assert settings["param_groups"][0]["lr"] == 0.01
    assert settings["param_groups"][0]["params"][0] == "Net.first.weight"


def test_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    weights, states = train(4)
    with recording(tmp_path, checksums="all") as run:
        recorded_weights, recorded_states = train(4)
    assert all(map(torch.equal, weights, recorded_weights))
    assert torch.equal(states[0], recorded_states[0])
    assert states[1:] == recorded_states[1:]
    assert len({e.step for e in run.of("checksum")}) == 4


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        ("first=2,every=3", [0, 1, 3]),
        ("2:4", [2, 3]),
        ("1", [1]),
        ("all,rank=1", []),
        ("rank=0", [0, 1, 2, 3, 4]),
    ],
)
def test_only_steps_of_the_schedule_have_records(
    tmp_path: Path, schedule: str, steps: list[int]
) -> None:
    with recording(tmp_path, checksums=schedule) as run:
        train(5)
    assert sorted({e.step for e in run.of("checksum")}) == steps


def test_without_the_setting_nothing_is_installed(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        train(2)
        assert not any(isinstance(one, Checksums) for one in run.session.installed)
    assert not run.of("checksum")


def test_other_views_have_the_same_records(tmp_path: Path) -> None:
    from traincheck.schema.claims import Needs

    with recording(tmp_path / "a", checksums="all") as whole:
        train(3)
    with recording(tmp_path / "b", checksums="all", needs=Needs()) as bare:
        train(3)
    with recording(tmp_path / "c", checksums="all", every=2) as some:
        train(3)

    def contents(run: Recording, steps: set[int]) -> list[Any]:
        return [
            (e.step, e.group, e.name, e.summary and e.summary.fingerprint)
            for e in run.of("checksum")
            if e.step in steps
        ]

    assert contents(bare, {0, 1, 2}) == contents(whole, {0, 1, 2})
    assert contents(some, {0, 2}) == contents(whole, {0, 2})
    assert not contents(some, {1})


def test_a_closure_is_run_before_the_records(tmp_path: Path) -> None:
    """Lightning gives each optimizer one: gradients exist only after it."""
    torch.manual_seed(0)
    x = torch.randn(5, 3)
    seen: list[str | None] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).pow(2).sum()
        loss.backward()
        seen.append(fingerprint(model.weight.grad))  # type: ignore[arg-type]
        return loss

    with recording(tmp_path, checksums="all") as run:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        optimizer.step(closure)
    assert len(set(seen)) > 1
    assert by_name(run, "gradient", 0)["Linear.weight"].summary.fingerprint == seen[0]


def test_an_exception_of_a_closure_passes_through(tmp_path: Path) -> None:

    def closure() -> float:
        raise ValueError("it went wrong")

    with recording(tmp_path, checksums="all"):
        optimizer = torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1)
        with pytest.raises(ValueError, match="it went wrong"):
            optimizer.step(closure)


def test_gradients_are_unscaled(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with recording(tmp_path, checksums="all") as run:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        loss = model(torch.ones(2, 3)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert by_name(run, "gradient", 0)["Linear.weight"].numbers["mean"] == 2.0


def test_each_optimizer_has_its_parameters_as_it_finds_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found: dict[str, str | None] = {}
    with recording(tmp_path, checksums="all") as run:
        one, two = nn.Linear(3, 3), nn.Linear(3, 1)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two)]
        two(one(torch.ones(2, 3))).sum().backward()
        found["Linear.weight"] = fingerprint(one.weight)
        optimizers[0].step()
        found["Linear#2.weight"] = fingerprint(two.weight)
        with torch.no_grad():
            one.weight.add_(1)
        optimizers[1].step()
    told = {n: e.summary.fingerprint for n, e in by_name(run, "parameter", 0).items()}
    assert {name: told[name] for name in found} == found
    assert {e.owner for e in by_name(run, "optimizer", 0).values()} == {"opt0", "opt1"}


def test_a_failure_of_ours_is_counted_and_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, _ = train(3)

    def broken(*_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(ChecksumSnapshot, "add", broken)
    with recording(tmp_path, checksums="all", must_be_whole=False) as run:
        again, _ = train(3)
    assert all(map(torch.equal, weights, again))
    assert run.marks("fault")


def test_no_hook_stays(tmp_path: Path) -> None:
    from torch.optim import optimizer as optimizers

    before = dict(optimizers._global_optimizer_pre_hooks)
    with recording(tmp_path, checksums="all"):
        train(2)
    assert dict(optimizers._global_optimizer_pre_hooks) == before


def test_the_state_of_an_optimizer_is_not_created(tmp_path: Path) -> None:
    with recording(tmp_path, checksums="all"):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 3)).sum()
        optimizer.zero_grad()
        optimizer.step()  # nothing has a gradient
    assert not optimizer.state
