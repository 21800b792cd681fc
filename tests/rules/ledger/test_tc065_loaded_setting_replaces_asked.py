"""TC065: hyper-parameters of a checkpoint in place of those asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.builders import ADAM, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.ledger.programs import model, recorded, set_rate, train
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.loads import LoadedHyperparameters, LoadedSetting


def loaded(
    asked: float, rate: float, *, later: float | None = None, name: str = "lr", **fields: Any
) -> TraceBuilder:
    """An optimizer that is created with one value and trains with that of a checkpoint."""
    trace = net(cls=ADAM, **{name: asked}).steps(1)
    later = rate if later is None else later
    setting = LoadedSetting(0, name, repr(asked), repr(rate), repr(later), **fields)
    found = LoadedHyperparameters("opt0", (setting,), "train.py:30").data()
    found["settings"] = [
        {key: getattr(setting, key) for key in setting.__slots__} for setting in found["settings"]
    ]
    trace.optimizers["opt0"].hyper[name] = later
    return trace.mark(LoadedHyperparameters.text, **found).steps(5)


BROKEN = loaded(5e-4, 1e-2).build()


def test_fires_on_a_larger_rate() -> None:
    finding = fires("TC065", BROKEN)
    assert (finding.subject.variable, finding.violations) == ("opt0", 1)
    assert mentions(finding, "lr=0.0005", "0.01")


def test_fires_on_another_weight_decay() -> None:
    assert mentions(fires("TC065", loaded(0.1, 0.01, name="weight_decay").build()), "weight_decay")


@pytest.mark.parametrize(
    "trace",
    [
        loaded(1e-2, 1e-4),  # an earlier run may have decayed it
        loaded(5e-4, 1e-2, later=5e-4),  # set again
        loaded(1e-3, 1e-2, is_default=True),
        loaded(0.0, 1e-2),
        loaded(5e-4, 1e-2).scheduler_step(),
    ],
    ids=["smaller", "set again", "default", "placeholder", "scheduler"],
)
def test_quiet_on_what_may_be_meant(trace: TraceBuilder) -> None:
    assert quiet("TC065", trace.steps(2).build()) is Verdict.HELD


def second_stage(*, rate: float, then: Callable[[Any], object] = lambda _: None) -> None:
    """Trains with 1e-2, and goes on with another optimizer from its state."""
    first = model()
    optimizer = torch.optim.AdamW(first.parameters(), lr=1e-2)
    train(first, optimizer)
    net_of_stage = model()
    second = torch.optim.AdamW(net_of_stage.parameters(), lr=rate)
    net_of_stage.load_state_dict(first.state_dict())
    second.load_state_dict(optimizer.state_dict())
    then(second)
    train(net_of_stage, second, 8)


def halved(optimizer: Any) -> None:
    torch.optim.lr_scheduler.StepLR(optimizer, 3)


@pytest.mark.parametrize("rate", [5e-4, 5e-2])
def test_fires_on_a_second_stage(tmp_path: Path, rate: float) -> None:
    finding = fires("TC065", recorded(tmp_path, lambda: second_stage(rate=rate)))
    assert mentions(finding, f"lr={rate}", "0.01")


@pytest.mark.parametrize(
    "then",
    [
        lambda optimizer: set_rate(optimizer.param_groups, 5e-4),
        halved,
    ],
    ids=["set again", "scheduler"],
)
def test_quiet_on_healthy_stages(tmp_path: Path, then: Callable[[Any], object]) -> None:
    events = recorded(tmp_path, lambda: second_stage(rate=5e-4, then=then))
    assert quiet("TC065", events) is Verdict.HELD


def test_quiet_on_a_resume_with_the_same_rate(tmp_path: Path) -> None:
    assert quiet("TC065", recorded(tmp_path, lambda: second_stage(rate=1e-2))) is Verdict.HELD


def resumed(*, rate: float, scheduler_state: bool = True, made_after: bool = False) -> None:
    """A decaying schedule that is resumed by an optimizer that is created with ``rate``."""
    first = model()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    train(first, optimizer, 5, after=lambda _: schedule.step())
    second = torch.optim.SGD(first.parameters(), lr=rate)
    make = functools.partial(torch.optim.lr_scheduler.ExponentialLR, second, 0.9)
    again = None if made_after else make()
    second.load_state_dict(optimizer.state_dict())
    again = again or make()
    if scheduler_state:
        again.load_state_dict(schedule.state_dict())
    train(first, second, 8, after=lambda _: again.step())


@pytest.mark.parametrize("made_after", [False, True])
def test_fires_on_the_base_rate_of_a_schedule(tmp_path: Path, made_after: bool) -> None:
    events = recorded(tmp_path, lambda: resumed(rate=0.02, made_after=made_after))
    assert mentions(fires("TC065", events), "lr=0.02", "0.1")


def test_quiet_on_a_resume_of_the_same_schedule(tmp_path: Path) -> None:
    assert quiet("TC065", recorded(tmp_path, lambda: resumed(rate=0.1))) is Verdict.HELD


def test_quiet_on_a_search_for_a_rate(tmp_path: Path) -> None:
    """The rate is raised step by step, and the state from before is loaded again."""

    def search() -> None:
        net_of_search = model()
        optimizer = torch.optim.SGD(net_of_search.parameters(), lr=0.01)
        train(net_of_search, optimizer, 2)
        state = optimizer.state_dict()
        raised = optimizer.param_groups
        train(net_of_search, optimizer, 4, before=lambda step: set_rate(raised, 0.01 * 2**step))
        optimizer.load_state_dict(state)
        train(net_of_search, optimizer, 6)

    events: list[Event] = recorded(tmp_path, search)
    assert quiet("TC065", events) is Verdict.HELD
