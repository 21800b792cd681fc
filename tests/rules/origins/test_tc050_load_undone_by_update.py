"""TC050: the first update after a load takes it back. Real programs, and numbers at the edge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

State = dict[str, torch.Tensor]


def followed(*, jump: float = 5.0, moved: float, back: float, later: float) -> list[Event]:
    value = {"jump": jump, "moved": moved, "back": back, "later": later}
    names = ("Net.fc1.weight", "Net.fc2.weight")
    data = {"model": "Net", "where": "train.py:30", "step": 1, "parameters": 2}
    run = net().steps(3).mark("load followed", **data, values=dict.fromkeys(names, value))
    return run.steps(1).build()


BROKEN = followed(moved=4.9, back=0.1, later=0.05)


def test_fires_in_the_step_of_the_first_update(golden: Golden) -> None:
    finding = golden(fires("TC050", BROKEN))
    assert (finding.first_step, finding.subject.module, finding.severity) == (1, "Net", "error")


@pytest.mark.parametrize(
    ("moved", "back", "later"),
    [
        (0.05, 5.0, 0.05),  # an update from the loaded values
        (4.9, 0.1, 4.0),  # large updates: the next one is as large
        (4.9, 7.0, 0.05),  # to neither
        (float("nan"), float("nan"), 0.0),
    ],
)
def test_quiet_on_other_updates(moved: float, back: float, later: float) -> None:
    assert quiet("TC050", followed(moved=moved, back=back, later=later)) is Verdict.HELD


class Masters:
    """Adam on float32 copies."""

    def __init__(self, model: nn.Module) -> None:
        self.params = list(model.parameters())
        self.copies = [nn.Parameter(p.detach().clone().float()) for p in self.params]
        self.inner = torch.optim.Adam(self.copies, 1e-3)

    @torch.no_grad()
    def refresh(self) -> None:
        for copy, parameter in zip(self.copies, self.params):
            copy.copy_(parameter)

    def step(self) -> None:
        for copy, parameter in zip(self.copies, self.params):
            copy.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        self.inner.step()
        with torch.no_grad():
            for copy, parameter in zip(self.copies, self.params):
                parameter.copy_(copy)


def model(dtype: torch.dtype = torch.bfloat16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)


def train(net: nn.Module, step: Callable[[], object], steps: int = 4) -> None:
    dtype = next(net.parameters()).dtype
    for _ in range(steps):
        net(torch.randn(8, 6).to(dtype)).float().square().mean().backward()
        step()


def masters(*, refreshes: bool) -> None:
    saved, net = model().state_dict(), model()
    optimizer = Masters(net)
    net.load_state_dict(saved)
    if refreshes:
        optimizer.refresh()
    train(net, optimizer.step)


def average_swapped_in_and_taken_back_by_hand() -> None:
    net, average = model(torch.float32), model(torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    train(net, optimizer.step, 2)
    backup = [p.detach().clone() for p in net.parameters()]
    net.load_state_dict(average.state_dict())
    with torch.no_grad():
        net(torch.randn(4, 6))
        for parameter, kept in zip(net.parameters(), backup):
            parameter.copy_(kept)
    train(net, optimizer.step)


def inner_loop_of_meta_learning() -> None:
    net = model(torch.float32)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    x = torch.randn(8, 6)
    for _ in range(5):
        net.load_state_dict(start)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()


def target_network() -> None:
    net, target = model(torch.float32), model(torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(3):
        target.load_state_dict(net.state_dict())
        train(net, optimizer.step, 2)


def recorded(path: Path, program: Callable[[], None]) -> list[Event]:
    torch.manual_seed(0)
    with recording(path) as run:
        program()
    return run.events


def test_fires_on_masters_that_were_copied_before_the_load(tmp_path: Path) -> None:
    finding = fires("TC050", recorded(tmp_path, lambda: masters(refreshes=False)))
    assert (finding.first_step, finding.subject.module) == (0, "Sequential")


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        (lambda: masters(refreshes=True), Verdict.HELD),
        (average_swapped_in_and_taken_back_by_hand, Verdict.NOT_TRIGGERED),
        (inner_loop_of_meta_learning, Verdict.HELD),
        (target_network, Verdict.NOT_TRIGGERED),
    ],
)
def test_quiet_on_programs_that_keep_what_they_load(
    tmp_path: Path, program: Callable[[], None], verdict: Verdict
) -> None:
    assert quiet("TC050", recorded(tmp_path, program)) is verdict


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    def run() -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(3)
        net = model(torch.float32)
        net.load_state_dict(model(torch.float32).state_dict())
        train(net, torch.optim.Adam(net.parameters(), 1e-2).step)
        return [p.detach().clone() for p in net.parameters()], torch.get_rng_state()

    plain, state = run()
    with recording(tmp_path) as record:
        watched, watched_state = run()
    assert record.marks("load followed")
    assert all(map(torch.equal, plain, watched))
    assert torch.equal(state, watched_state)
