"""TC610: a resume that leaves the states of generators behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.resuming import Resuming
from traincheck.collect.observers.origins import loaded_generators
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

numpy = pytest.importorskip("numpy")


def state(generator: str = "torch", **given: Any) -> dict[str, Any]:
    found = {"restored": False, "seeded": False, "drawn": True, "owned": False}
    return {"key": f"rng.{generator}", "generator": generator, **found, **given}


def resumed(
    *states: dict[str, Any], again: int | None = None, optimizer: bool = True
) -> list[Event]:
    builder = Resuming().process().model("Net")
    assert isinstance(builder, Resuming)
    builder.seed("torch", 7)
    builder.begin()
    builder.optimizer()
    if optimizer:
        builder.load_optimizer()
    if again is not None:
        builder.seed("torch", again)
    builder.mark("loaded generators", where="train.py:9", states=list(states))
    return builder.steps(3).build()


BROKEN = resumed(state(), state("python", restored=True), state("numpy"))


def test_fires_when_states_are_not_given_back(golden: Golden) -> None:
    finding = golden(fires("TC610", BROKEN))
    assert (finding.severity, finding.violations) == ("warning", 1)
    assert mentions(finding, "train.py:9", "rng.numpy", "torch.set_rng_state")


def test_fires_when_the_first_seed_comes_again(golden: Golden) -> None:
    finding = golden(fires("TC610", resumed(state(seeded=True), again=7)))
    assert mentions(finding, "seeded again")


@pytest.mark.parametrize(
    ("given", "again"),
    [
        ({"restored": True}, None),
        ({"drawn": False}, None),
        ({"owned": True}, None),
        ({"seeded": True}, 8),  # of an epoch
    ],
)
def test_quiet_on_states_that_do_not_matter(given: dict[str, Any], again: int | None) -> None:
    assert quiet("TC610", resumed(state(**given), again=again)) is Verdict.HELD


def test_quiet_when_one_state_of_the_kind_is_given_back() -> None:
    assert quiet("TC610", resumed(state(), state(key="last", restored=True))) is Verdict.HELD


def test_quiet_without_the_optimizer() -> None:
    assert quiet("TC610", resumed(state(), optimizer=False)) is Verdict.NOT_TRIGGERED


# -- recorded programs

Restore = Callable[[dict[str, Any], "Parts"], None]


class Parts:
    """A model, its optimizer, and a shuffling loader with or without its own generator."""

    def __init__(self, *, own: bool = False) -> None:
        self.model = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        data = TensorDataset(torch.ones(32, 64))
        self.generator = torch.Generator() if own else None
        sampler = RandomSampler(data, generator=self.generator)
        self.loader = DataLoader(data, batch_size=8, sampler=sampler)

    def train(self) -> None:
        for (batch,) in self.loader:
            noise = random.random() + float(numpy.random.rand())
            self.optimizer.zero_grad()
            self.model(batch * noise).square().mean().backward()
            self.optimizer.step()

    def save(self, path: Path, **rng: Any) -> None:
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        torch.save({"model": model, "optimizer": optimizer, "rng": rng}, path)


def globals_() -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
    }


def all_back(found: dict[str, Any], parts: Parts) -> None:
    torch.set_rng_state(found["torch"])
    random.setstate(found["python"])
    numpy.random.set_state(found["numpy"])


def by_method(found: dict[str, Any], parts: Parts) -> None:
    all_back(found, parts)
    torch.manual_seed(5)
    torch.default_generator.set_state(found["torch"])


def seeded_within(found: dict[str, Any], parts: Parts) -> None:
    all_back(found, parts)
    torch.rand(2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)


def only_torch(found: dict[str, Any], parts: Parts) -> None:
    torch.set_rng_state(found["torch"])


def seeded_after(found: dict[str, Any], parts: Parts) -> None:
    all_back(found, parts)
    torch.manual_seed(11)


def nothing(found: dict[str, Any], parts: Parts) -> None:
    pass


def program(folder: Path, restore: Restore, *, optimizer: bool = True) -> list[Event]:
    """A process that resumes from the file of an earlier one."""
    path = folder / "last.pt"
    first = Parts()
    first.train()
    first.save(path, **globals_())
    with recording(folder / "trace") as run:
        torch.manual_seed(11)
        random.seed(11)
        numpy.random.seed(11)
        parts = Parts()
        found = torch.load(path, weights_only=False)
        parts.model.load_state_dict(found["model"])
        if optimizer:
            parts.optimizer.load_state_dict(found["optimizer"])
        restore(found["rng"], parts)
        parts.train()
    return run.events


@pytest.mark.parametrize(
    ("restore", "kinds"),
    [
        (nothing, ("torch", "python", "numpy")),
        (only_torch, ("python",)),
        (seeded_after, ("torch",)),
    ],
)
def test_fires_on_programs(tmp_path: Path, restore: Restore, kinds: tuple[str, ...]) -> None:
    finding = fires("TC610", program(tmp_path, restore))
    assert finding.first_step == 0
    assert mentions(finding, *(f"rng.{kind}" for kind in kinds))
    assert mentions(finding, "rng.torch") is ("torch" in kinds)


@pytest.mark.parametrize("restore", [all_back, by_method, seeded_within])
def test_quiet_on_programs_that_restore(tmp_path: Path, restore: Restore) -> None:
    assert quiet("TC610", program(tmp_path, restore)) is Verdict.HELD


def test_quiet_on_fine_tuning(tmp_path: Path) -> None:
    events = program(tmp_path, nothing, optimizer=False)
    assert quiet("TC610", events) is Verdict.NOT_TRIGGERED


@pytest.mark.parametrize("rank", [0, 1])
def test_quiet_when_one_of_the_states_of_ranks_is_given_back(tmp_path: Path, rank: int) -> None:
    path = tmp_path / "last.pt"
    first = Parts()
    first.train()
    ranks = [torch.get_rng_state()]
    torch.rand(3)
    first.save(path, ranks=[*ranks, torch.get_rng_state()])
    with recording(tmp_path / "trace") as run:
        for _ in range(2):  # the file is read twice
            found = torch.load(path)
        parts = Parts()
        parts.model.load_state_dict(found["model"])
        parts.optimizer.load_state_dict(found["optimizer"])
        torch.set_rng_state(found["rng"]["ranks"][rank])
        parts.train()
    assert quiet("TC610", run.events) is Verdict.HELD
    (mark,) = run.marks("loaded generators")
    assert [one["key"] for one in mark.data["states"]] == ["rng.ranks[]"]


def test_quiet_on_a_rollback(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    with recording(tmp_path / "trace") as run:
        parts = Parts()
        parts.train()
        parts.save(path, **globals_())
        parts.train()
        found = torch.load(path, weights_only=False)
        parts.model.load_state_dict(found["model"])
        parts.optimizer.load_state_dict(found["optimizer"])
        parts.train()
    assert quiet("TC610", run.events) is Verdict.NOT_TRIGGERED
    assert run.marks("loaded generators")


def test_a_fault_of_ours_does_not_reach_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(value: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(loaded_generators, "held_states", fails)
    path = tmp_path / "last.pt"
    Parts().save(path, **globals_())
    with recording(tmp_path / "trace", must_be_whole=False) as run:
        assert "rng" in torch.load(path, weights_only=False)
        assert run.session.faults.count
    assert not run.marks("loaded generators")


@pytest.mark.parametrize(
    ("value", "places"),
    [
        ({"a": list(random.getstate())}, [("a", "python")]),
        ({"a": [{"b": numpy.random.get_state()}]}, [("a[].b", "numpy")]),
        ({3: torch.get_rng_state()}, [("[]", "torch")]),
        ({"cuda_rng": torch.zeros(16, dtype=torch.uint8)}, [("cuda_rng", "cuda")]),
        ({"mask": torch.zeros(16, dtype=torch.uint8), "b": (1, 2, 3)}, []),
        ({"a": torch.zeros(5056), "b": ("MT19937", [1] * 624, 0, 0, 0.0)}, []),
    ],
)
def test_states_are_found_by_their_form(value: Any, places: list[tuple[str, str]]) -> None:
    assert [place for place, _ in loaded_generators.held_states(value)] == places


@pytest.mark.parametrize("is_restored", [True, False])
def test_quiet_on_a_generator_of_the_program(tmp_path: Path, is_restored: bool) -> None:
    path = tmp_path / "last.pt"
    first = Parts(own=True)
    assert first.generator is not None
    first.train()
    first.save(path, data=first.generator.get_state())
    with recording(tmp_path / "trace") as run:
        parts = Parts(own=True)
        found = torch.load(path)
        parts.model.load_state_dict(found["model"])
        parts.optimizer.load_state_dict(found["optimizer"])
        assert parts.generator is not None
        if is_restored:
            parts.generator.set_state(found["rng"]["data"])
        parts.train()
    assert quiet("TC610", run.events) is Verdict.HELD
    (mark,) = run.marks("loaded generators")
    assert [one["restored"] for one in mark.data["states"]] == [is_restored]


def test_a_kept_dict_of_local_variables_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    Parts().save(path, **globals_())

    def resume(at: Path) -> dict[str, Any]:
        kept = locals()
        parts = Parts()
        found = torch.load(at, weights_only=False)
        parts.model.load_state_dict(found["model"])
        parts.optimizer.load_state_dict(found["optimizer"])
        parts.train()
        return kept

    with recording(tmp_path / "trace") as run:
        assert resume(path) == {"at": path}
    (mark,) = run.marks("loaded generators")
    assert all(one["owned"] for one in mark.data["states"])


def test_training_is_bit_identical(tmp_path: Path) -> None:
    results = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        path = folder / "last.pt"
        first = Parts()
        first.save(path, **globals_())

        def resume(path: Path = path) -> list[Any]:
            parts = Parts()
            found = torch.load(path, weights_only=False)
            parts.model.load_state_dict(found["model"])
            parts.optimizer.load_state_dict(found["optimizer"])
            parts.train()
            numbers = numpy.random.get_state()
            states = [random.getstate(), numbers[1].tolist(), numbers[2]]
            weights = [p.tolist() for p in parts.model.parameters()]
            return [torch.get_rng_state().tolist(), *states, *weights]

        if folder.name == "a":
            results.append(resume())
        else:
            with recording(folder / "trace") as run:
                results.append(resume())
            assert run.marks("loaded generators")
    assert results[0] == results[1]
