"""TC055: averages whose memory is a few updates. Hand-made looks and real programs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.checking import fires, net, quiet
from tests.golden import Golden
from tests.rules.origins.programs import recorded, small
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.loads import AverageDecay
from traincheck.schema.observations.reading import observed


def looks(*decays: float, cls: str = "__main__.Net", residual: float = 1e-5) -> list[Event]:
    """One look every 12 steps, from step 25 on."""
    builder = net().steps(26)
    for decay in decays:
        fields = {"model": "Net#2", "model_class": cls, "of": "Net", "residual": residual}
        builder.mark("average moved", **fields, decay=decay).steps(12)
    return builder.build()


BROKEN = looks(0.5, 0.5)


def test_fires_at_the_second_look(golden: Golden) -> None:
    finding = golden(fires("TC055", BROKEN))
    assert (finding.subject.module, finding.severity) == ("Net#2", "info")


def test_fires_on_copies_of_an_average() -> None:
    assert fires("TC055", looks(0.0, 0.0, cls="ema.ModelEmaV2")).subject.module == "Net#2"


@pytest.mark.parametrize(
    "events",
    [
        looks(0.5),  # one look
        looks(0.5, 0.6, 0.68),  # a warm-up
        looks(0.99, 0.99),
        looks(0.5, 0.9),
        looks(0.0, 0.0),  # a target network that is copied in each step
        looks(-0.3, -0.3),  # beyond the trained model: no average
    ],
)
def test_quiet_on_other_decays(events: list[Event]) -> None:
    assert quiet("TC055", events) is Verdict.HELD


def test_not_judged_if_something_else_moves_it() -> None:
    assert quiet("TC055", looks(0.5, 0.5, residual=0.7)) is Verdict.NOT_TRIGGERED


class Average:
    """decay: of the n-th update, given its setting."""

    def __init__(self, model: nn.Module, decay: Callable[[Average], float]) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.count, self._decay = 0.999, 0, decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        decay = self._decay(self)
        self.count += 1
        for mine, theirs in zip(self.model.parameters(), model.parameters()):
            mine.lerp_(theirs, 1 - decay)


def overwritten(average: Average) -> float:
    average.decay = 1 - min(average.decay, (1 + average.count) / (10 + average.count))
    return 1 - average.decay


def warmed_up(average: Average) -> float:
    return min(average.decay, (1 + average.count) / (10 + average.count))


def train(model: nn.Module, average: nn.Module, update: Callable[[nn.Module], object]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(50):
        optimizer.zero_grad()
        x = torch.randn(16, 6)
        (model(x) - x[:, :3]).square().mean().backward()
        optimizer.step()
        update(model)
        if step % 8 == 7:
            with torch.no_grad():
                average(x)


def averaged(decay: Callable[[Average], float]) -> None:
    model = small()
    average = Average(model, decay)
    train(model, average.model, average.update)


def averaged_by_torch(decay: float) -> None:
    model = small()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    train(model, average, average.update_parameters)


def copied() -> None:
    model, target = small(), small()
    train(model, target, lambda m: target.load_state_dict(m.state_dict()))


def decays(events: list[Event]) -> list[AverageDecay]:
    marks = [event for event in events if isinstance(event, MarkEvent)]
    return [found for event in marks if (found := observed(event, AverageDecay)) is not None]


@pytest.mark.parametrize("program", [lambda: averaged(overwritten), lambda: averaged_by_torch(0.4)])
def test_fires_on_averages_that_forget(tmp_path: Path, program: Callable[[], None]) -> None:
    finding = fires("TC055", recorded(tmp_path, program))
    assert (finding.first_step or 0) > 24


@pytest.mark.parametrize(
    "program",
    [lambda: averaged(warmed_up), lambda: averaged_by_torch(0.99), copied],
    ids=["warm-up", "slow", "target network"],
)
def test_quiet_on_healthy_programs(tmp_path: Path, program: Callable[[], None]) -> None:
    assert quiet("TC055", recorded(tmp_path, program)) is Verdict.HELD


def test_the_decay_is_that_of_the_program(tmp_path: Path) -> None:
    found = decays(recorded(tmp_path, lambda: averaged_by_torch(0.9)))
    assert len(found) >= 3
    assert all(abs(one.decay - 0.9) < 1e-3 and one.residual < 1e-2 for one in found)
    assert {(one.model, one.of) for one in found} == {("AveragedModel", "Sequential")}
