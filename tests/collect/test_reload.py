"""Loads tell how much they change, and of which optimizer the state is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.collect.recording import recording
from traincheck.collect.tracking.optimizer_groups import innermost, owner_of

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
}
SCHEDULERS = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [1, 5]),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [5]
    ),
}


def trained(make: Any, steps: int) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer: torch.optim.Optimizer = make(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).pow(2).sum().backward()
        optimizer.step()
    return optimizer


def changed(folder: Path, target: Any, state: Any) -> int | None:
    with recording(folder) as run:
        target.load_state_dict(state)
    (load,) = run.of("checkpoint")
    assert load.op == "load_state_dict"
    return load.changed  # type: ignore[no-any-return]


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_state_that_an_optimizer_has_changes_nothing(
    tmp_path: Path, make: Any, steps: int
) -> None:
    optimizer = trained(make, steps)
    assert changed(tmp_path / "same", optimizer, optimizer.state_dict()) == 0
    assert changed(tmp_path / "copy", optimizer, copy.deepcopy(optimizer.state_dict())) == 0


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_another_state_tells_what_it_changes(tmp_path: Path, make: Any) -> None:
    fresh, old = trained(make, 0), trained(make, 2)
    old.param_groups[0]["weight_decay"] = 0.5
    assert changed(tmp_path / "run", fresh, old.state_dict()) == 1 + len(old.state) * len(
        next(iter(old.state.values()), ())
    )


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_scheduler_tells_whether_it_is_moved(tmp_path: Path, make: Any) -> None:
    optimizer = trained(OPTIMIZERS["momentum"], 0)
    scheduler, other = make(optimizer), make(trained(OPTIMIZERS["momentum"], 0))
    assert changed(tmp_path / "own", scheduler, scheduler.state_dict()) == 0
    for _ in range(3):
        other.step(1.0) if isinstance(other, lr_scheduler.ReduceLROnPlateau) else other.step()
    found = changed(tmp_path / "other", scheduler, other.state_dict())
    assert found is not None
    assert found > 0


class Around:
    """A wrapper as those of frameworks."""

    def __init__(self, inner: torch.optim.Optimizer, name: str = "optimizer") -> None:
        setattr(self, name, inner)


class Sharing:
    """A wrapper that has but the groups."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.param_groups = inner.param_groups


def test_a_wrapper_stands_for_the_optimizer_inside() -> None:
    one, other = trained(OPTIMIZERS["SGD"], 0), trained(OPTIMIZERS["SGD"], 0)
    live = [("opt0", one), ("opt1", other)]
    for given in (other, Around(other), Around(other, "_optimizer"), Sharing(other)):
        assert owner_of(live, given) == "opt1"
    assert innermost(Around(other)) is other
    for given in (None, Around(trained(OPTIMIZERS["SGD"], 0)), object()):
        assert owner_of(live, given) is None


def test_a_wrapper_that_is_an_optimizer_itself_stands_for_itself() -> None:
    """As one that searches for flat minima: it shares groups, and is known by another id."""
    inner, outer = trained(OPTIMIZERS["SGD"], 0), trained(OPTIMIZERS["SGD"], 0)
    outer.param_groups = inner.param_groups
    assert owner_of([("opt0", inner), ("opt1", outer)], outer) == "opt1"


def test_calls_on_wrappers_tell_the_optimizer_and_the_line_of_the_user(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    with recording(tmp_path / "run") as run:
        model = nn.Linear(3, 2)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        scheduler = accelerator.prepare(lr_scheduler.StepLR(optimizer, 1))
        for _ in range(2):
            optimizer.zero_grad()
            accelerator.backward(model(torch.ones(1, 3)).sum())
            scaler.step(optimizer)
            scheduler.step()
    for family in ("SCHEDULER_CREATED", "SCHEDULER_STEP", "SCALER_STEP", "ZERO_GRAD", "BACKWARD"):
        from traincheck.schema.torch_api import Families

        calls = run.calls(getattr(Families, family))
        assert calls, family
        assert {call.where.rpartition(":")[0] for call in calls} == {__file__}
        if family != "BACKWARD":
            assert {call.owner for call in calls} == {"opt0"}, family
