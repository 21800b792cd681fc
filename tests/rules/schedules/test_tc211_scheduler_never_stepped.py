"""TC211: a scheduler that nobody steps."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.checking import BY_CODE, Alone, fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.window import batch, schedule, scheduler_made
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(epochs: int, *, makes: bool = True, steps_at: int | None = None) -> list[Event]:
    trace = scheduler_made(net()) if makes else net()
    for epoch in range(epochs):
        for index in range(3):
            batch(trace.begin_step(), index, epoch)
            trace.zero_grad().forward().backward().optimizer_step()
        if steps_at is not None and epoch >= steps_at:
            schedule(trace)
    return trace.build()


BROKEN = loop(4)


def test_fires_after_three_epochs(golden: Golden) -> None:
    finding = fires("TC211", BROKEN)
    assert (finding.first_step, finding.violations) == (3, 1)
    assert finding.subject.api == Families.SCHEDULER_STEP
    golden(finding)
    assert mentions(finding, "opt0 (Adam)", "train.py:42")


def test_waits_for_the_end_of_the_run_or_ten_times_as_long() -> None:
    monitor = Alone(BY_CODE["TC211"])
    told = [event.step for event in loop(32) if monitor.observe(event)]
    assert told == [90]  # the first step of the epoch after thirty
    assert monitor.finish() == []


def test_quiet_when_the_rate_is_set_in_another_way() -> None:
    events = [
        event.replace(lr={"opt0": [1e-3 / (1 + event.step // 3)]})
        if isinstance(event, StepEvent) and event.step is not None
        else event
        for event in loop(5)
    ]
    assert quiet("TC211", events) is Verdict.HELD


def test_quiet_when_the_first_epochs_have_one_rate() -> None:
    assert quiet("TC211", loop(9, steps_at=6)) is Verdict.HELD


def test_quiet_when_it_is_stepped() -> None:
    assert quiet("TC211", loop(5, steps_at=0)) is Verdict.HELD
    assert quiet("TC211", loop(5, steps_at=2)) is Verdict.HELD


def second_phase(*, steps: bool) -> list[Event]:
    """A scheduler for four epochs, then another one, as for weights that are averaged."""
    trace = scheduler_made(net())
    for epoch in range(8):
        if epoch == 4:
            scheduler_made(trace)
        for index in range(3):
            batch(trace.begin_step(), index, epoch)
            trace.zero_grad().forward().backward().optimizer_step()
        if epoch < 4 or steps:
            schedule(trace)
    return trace.build()


def test_a_second_scheduler_has_its_own_time() -> None:
    assert quiet("TC211", second_phase(steps=True)) is Verdict.HELD
    assert fires("TC211", second_phase(steps=False)).first_step == 15


def test_quiet_without_one_or_in_a_short_run() -> None:
    assert quiet("TC211", loop(5, makes=False)) is Verdict.NOT_TRIGGERED
    assert quiet("TC211", loop(3)) is Verdict.NOT_TRIGGERED


def rounds(
    *,
    batches: int = 1,
    size: int = 4,
    drop_last: bool = False,
    shuffle: bool = True,
    epochs: int = 8,
    tmp_path: Path,
) -> list[Event]:
    """Some batches of a new iterator each time, of eleven samples; the scheduler is not stepped."""
    data = TensorDataset(torch.randn(11, 5), torch.randint(3, (11,)))
    loader = DataLoader(data, size, shuffle=shuffle, drop_last=drop_last)
    torch.manual_seed(1)
    with recording(tmp_path / "run") as run:
        model = nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for _ in range(epochs):
            for inputs, labels in itertools.islice(loader, batches):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
    return run.events


@pytest.mark.parametrize(
    "given",
    [
        {"batches": 3},  # all of them
        {"batches": 2, "drop_last": True},
        {"size": 11},
        {"batches": 3, "shuffle": False},
    ],
)
def test_fires_after_whole_passes(tmp_path: Path, given: dict[str, Any], golden: Golden) -> None:
    assert mentions(golden(fires("TC211", rounds(tmp_path=tmp_path, **given)), numbers=False), 7)


@pytest.mark.parametrize(
    "given", [{}, {"shuffle": False}, {"batches": 2, "size": 2}, {"batches": 3, "epochs": 3}]
)
def test_quiet_on_iterators_that_are_left_early(tmp_path: Path, given: dict[str, Any]) -> None:
    assert quiet("TC211", rounds(tmp_path=tmp_path, **given)) is Verdict.NOT_TRIGGERED


def two_loaders(*, steps: bool) -> list[Event]:
    """Twelve batches an epoch; beside each, one of another loader, which has three."""
    trace = scheduler_made(net())
    for epoch in range(5):
        for index in range(12):
            batch(trace.begin_step(), index, epoch)
            batch(trace, index % 3, epoch * 4 + index // 3, "loader1")
            trace.zero_grad().forward().backward().optimizer_step()
        if steps:
            schedule(trace)
    return trace.build()


def test_epochs_are_those_of_the_longer_loader() -> None:
    assert quiet("TC211", two_loaders(steps=True)) is Verdict.HELD
    assert fires("TC211", two_loaders(steps=False)).first_step == 12
