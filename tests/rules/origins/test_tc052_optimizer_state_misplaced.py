"""TC052: optimizer state that a load gives to other parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.origins.programs import recorded
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

A, B, C = (
    [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    [0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0],
    [0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0],
)


def values(moment: str, states: Mapping[str, list[float]]) -> dict[str, Any]:
    found = {name: {"exp_avg": state} for name, state in states.items()}
    return {"moment": moment, "owner": "opt0", "where": "train.py:9", "values": found}


def resumed(loaded: Mapping[str, list[float]], *, pid: int = 1000) -> list[Event]:
    """A save, and a load in the same process or in another one of the same trace."""
    first = net().steps(2)
    saved = {"Net.fc1.weight": A, "Net.fc2.weight": B, "Net.fc1.bias": C}
    first.mark("optimizer values", **values("saved", saved))
    second = first if pid == first.pid else TraceBuilder(pid=pid).process().model("Net").optimizer()
    second.mark("optimizer values", **values("loaded", loaded)).steps(2)
    return first.build() + (second.build() if second is not first else [])


EXCHANGED = {"Net.fc1.weight": B, "Net.fc2.weight": A, "Net.fc1.bias": C}
BROKEN = resumed(EXCHANGED)


def test_fires_on_state_that_is_exchanged(golden: Golden) -> None:
    finding = golden(fires("TC052", BROKEN))
    assert (finding.severity, finding.violations) == ("error", 1)
    assert mentions(finding, "fc1.weight has that of fc2.weight")


def test_fires_where_another_process_resumes() -> None:
    other = {name.replace("Net", "Net#2"): state for name, state in EXCHANGED.items()}
    assert mentions(fires("TC052", resumed(other, pid=77)), "fc2.weight has that of fc1.weight")


@pytest.mark.parametrize(
    ("loaded", "verdict"),
    [
        ({"Net.fc2.weight": B, "Net.fc1.weight": A}, Verdict.HELD),
        ({"Net.new.weight": A, "Net.fc2.weight": B}, Verdict.HELD),  # renamed
        ({"Net.fc1.weight": [x + 4 for x in A]}, Verdict.NOT_TRIGGERED),  # of no known save
    ],
)
def test_quiet_on_other_loads(loaded: Mapping[str, list[float]], verdict: Verdict) -> None:
    assert quiet("TC052", resumed(loaded)) is verdict


def model() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))


def resume(
    order: Callable[[list[nn.Parameter]], list[nn.Parameter]],
) -> None:
    def trained(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()

    net = model()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    trained(net, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    again = model()
    again.load_state_dict(net.state_dict())
    resumed = torch.optim.Adam(order(list(again.parameters())), 1e-2)
    resumed.load_state_dict(state)
    trained(again, resumed)


def test_fires_on_another_order(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: resume(lambda p: [*p[2:4], *p[:2], *p[4:]]))
    finding = fires("TC052", events)
    assert mentions(finding, "0.weight has that of 1.weight")
    assert mentions(finding, "4 of 8")


def test_quiet_on_the_same_order(tmp_path: Path) -> None:
    assert quiet("TC052", recorded(tmp_path, lambda: resume(lambda p: p))) is Verdict.HELD
