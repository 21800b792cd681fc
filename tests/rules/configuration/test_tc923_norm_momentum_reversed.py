"""TC923: BatchNorm with the momentum of another library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.loss_runs import tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

API = "torch.nn.functional.batch_norm"
FORWARD = "__main__.Net.forward"


def norm(momentum: float | None, **more: Any) -> dict[str, Any]:
    """Facts about a batch norm."""
    facts = {"family": "batch norm", "track_running_stats": True, **more}
    return facts if momentum is None else {**facts, "momentum": momentum}


def run(
    momentum: float | None,
    steps: int = 3,
    *,
    calls: float | None = None,
    training: bool = True,
    tracks: bool = True,
    name: str = "Net",
    **more: Any,
) -> list[Event]:
    """Steps of a recorded model. calls: momentum in the calls of its norm, if there are any."""
    modules = {f"{name}.bn1": norm(momentum, **more), f"{name}.bn2": norm(0.1)}
    trace = net().mark("model", name=name, modules=modules)
    mean = tensor((8,)) if tracks else None
    for _ in range(steps):
        trace.begin_step().batch().zero_grad()
        if calls is not None:
            args = {"running_mean": mean, "training": training, "momentum": calls}
            trace.call(API, args=args, module="Net.bn1")
        trace.call(FORWARD, family=Families.MODULE, module="Net", root=True, training=True)
        trace.backward().optimizer_step()
    return trace.build()


BROKEN = run(0.99)


def test_fires_once_at_the_first_step(golden: Golden) -> None:
    finding = fires("TC923", BROKEN)
    assert (finding.first_step, finding.violations, finding.severity) == (0, 1, "warning")
    assert finding.subject.module == "Net.bn1"
    golden(finding)
    assert mentions(finding, "Net.bn1", 0.99)


@pytest.mark.parametrize("events", [run(0.9), run(0.99, calls=0.99), run(0.1, calls=0.9997)])
def test_fires_on_what_is_set_or_used(events: list[Event]) -> None:
    assert fires("TC923", events).subject.module == "Net.bn1"


@pytest.mark.parametrize(
    "events",
    [
        run(0.1),
        run(0.5),
        run(1.0),  # again with each batch, on purpose
        run(None),  # the plain mean
        run(0.99, steps=1),
        run(0.99, track_running_stats=False),
        run(0.99, family="instance norm"),
        run(0.99, calls=0.01),  # set since
        run(0.99, calls=0.99, training=False),  # frozen
        run(0.99, calls=0.99, tracks=False),
        run(0.99, name="Teacher"),  # another model is trained
        net().steps(3).build(),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC923", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def trained(folder: Path, momentum: float | None, *, steps: int = 3, frozen: bool = False) -> list:
    """Events of a program with one batch norm."""
    layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 2))
    with recording(folder / "run") as run:
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        if frozen:
            layers[1].eval()
        for _ in range(steps):
            optimizer.zero_grad()
            layers(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
        layers.eval()
        with torch.no_grad():
            layers(torch.randn(16, 4))
    return run.events


def test_fires_on_a_program(tmp_path: Path) -> None:
    finding = fires("TC923", trained(tmp_path, 0.997))
    assert finding.subject.module == "Sequential.1"
    assert finding.first_step == 0


@pytest.mark.parametrize("momentum", [0.1, None, 1.0])
def test_quiet_on_programs(tmp_path: Path, momentum: float | None) -> None:
    assert quiet("TC923", trained(tmp_path, momentum)) is Verdict.HELD


def test_quiet_on_a_frozen_norm_and_on_evaluation(tmp_path: Path) -> None:
    assert quiet("TC923", trained(tmp_path, 0.99, frozen=True)) is Verdict.HELD
    (tmp_path / "other").mkdir()
    assert quiet("TC923", trained(tmp_path / "other", 0.99, steps=0)) is Verdict.NOT_TRIGGERED


def test_quiet_on_norms_that_are_frozen_one_by_one(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.99), nn.Linear(8, 2))
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model.train()
            model[1].eval()
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
    assert quiet("TC923", run.events) is Verdict.HELD


def test_fires_on_compiled_norms(tmp_path: Path) -> None:
    """Whose calls are not seen: what the model is made of tells."""
    events = [event for event in trained(tmp_path, 0.99) if getattr(event, "api", "") != API]
    assert fires("TC923", events)
