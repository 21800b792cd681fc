"""TC705: units that are off for every sample."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden
from tests.rules.numbers import Activations
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Verdict

RELU = "torch.nn.functional.relu"
LEAKY = "torch.nn.modules.activation.LeakyReLU.forward"
GELU = "torch.nn.functional.gelu"


def looks(
    dead: float, zeros: float, count: int = 4, api: str = RELU, **options: object
) -> list[Event]:
    stats = {"min": 0.0, "max": 1.0, "nonfinite": 0, "dead": dead, "zeros": zeros}
    return Activations(api).steps(count, stats, **options).build()  # type: ignore[arg-type]


BROKEN = looks(1.0, 1.0)


def test_fires_on_a_function_and_names_its_module(golden: Golden) -> None:
    finding = fires("TC705", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.subject.module == "Net"
    golden(finding)


def test_fires_on_a_module() -> None:
    events = looks(1.0, 1.0, api="torch.nn.modules.activation.ReLU.forward")
    assert fires("TC705", events).subject.module == "Net.act"


def test_fires_when_50_of_64_units_are_dead_and_the_others_live() -> None:
    assert fires("TC705", looks(50 / 64, 0.9, shape=(64, 64))).first_step == 0


def test_fires_on_relatives_by_their_own_measure() -> None:
    assert fires("TC705", looks(1.0, 0.0, api=LEAKY)).subject.module == "Net.act"
    assert fires("TC705", looks(0.97, 0.0, api=GELU)).subject.module == "Net"
    assert quiet("TC705", looks(0.8, 0.0, api=LEAKY)) is Verdict.HELD


def test_quiet_on_scores_of_nodes_against_nodes() -> None:
    scores = looks(1.0, 0.0, api="torch.nn.functional.leaky_relu", shape=(60, 60))
    assert quiet("TC705", scores) is Verdict.HELD
    assert fires("TC705", looks(1.0, 0.0, api="torch.nn.functional.leaky_relu", shape=(128, 60)))


@pytest.mark.parametrize(
    ("dead", "zeros", "shape"),
    [
        (0.16, 0.965, (1024, 64)),  # sparse: 84 % of the units are on for some sample
        (0.8, 0.997, (64, 4096)),  # a sparse autoencoder
        (0.6, 0.8, (64, 64)),
        (0.75, 0.9, (32, 4)),  # the bottleneck of squeeze and excitation
        (1.0, 1.0, (64, 9)),
        (0.75, 0.9, (64, 16)),
        (1.0, 1.0, (8, 64)),  # too few samples
        (0.0, 1.0, (64, 64)),
    ],
)
def test_quiet_on_units_that_are_rarely_on(
    dead: float, zeros: float, shape: tuple[int, ...]
) -> None:
    assert quiet("TC705", looks(dead, zeros, shape=shape)) is Verdict.HELD


def test_quiet_until_it_is_confirmed_at_three_steps() -> None:
    assert quiet("TC705", looks(1.0, 1.0, count=2, calls=5)) is Verdict.HELD


def test_quiet_when_units_come_back() -> None:
    dead = {"min": 0.0, "max": 0.0, "nonfinite": 0, "dead": 1.0, "zeros": 1.0}
    alive = {**dead, "dead": 0.1, "zeros": 0.5}
    trace = Activations(RELU).steps(2, dead).step(alive).steps(2, dead)
    assert quiet("TC705", trace.build()) is Verdict.HELD


def test_calls_of_one_module_at_several_places_are_told_apart() -> None:
    # one nn.ReLU that a block uses twice: only its second call is dead
    trace = Activations("torch.nn.modules.activation.ReLU.forward")
    dead = {"min": 0.0, "max": 0.0, "nonfinite": 0, "dead": 1.0, "zeros": 1.0}
    assert fires("TC705", trace.steps(4, dead, calls=2).build()).violations == 2


def test_quiet_in_evaluation() -> None:
    assert quiet("TC705", looks(1.0, 1.0, grad=False)) is Verdict.NOT_TRIGGERED


@pytest.mark.parametrize("seed", [3, 11])
def test_quiet_on_the_bottlenecks_of_squeeze_and_excitation(tmp_path: Path, seed: int) -> None:
    """Their inputs are averages, and hardly differ from one image to the next."""
    torch.manual_seed(seed)
    with recording(tmp_path / "run") as run:
        model = nn.Sequential(Excited(), Excited(), nn.Flatten(), nn.Linear(16 * 64, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            images = torch.randn(32, 16, 8, 8)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), torch.arange(32) % 4).backward()
            optimizer.step()
    shares = [
        event.result["stats"]["dead"]
        for event in run.events
        if isinstance(event, CallEvent)
        and event.api.endswith("ReLU.forward")
        and event.result.get("stats")
    ]
    assert max(shares) >= 0.75, "few units, of which most are off"
    assert quiet("TC705", run.events) is Verdict.HELD


class Excited(nn.Module):
    """A block of 16 channels, with a bottleneck of 4 units."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.gate = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16), nn.Sigmoid())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.conv(images).relu()
        gate: torch.Tensor = self.gate(features.mean((2, 3)))
        return features * gate[:, :, None, None]
