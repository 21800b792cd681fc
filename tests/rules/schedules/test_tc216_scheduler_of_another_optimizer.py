"""TC216: schedulers whose optimizer is idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.window import schedule
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

of_torch = pytest.mark.filterwarnings("ignore:Detected call")  # whichever optimizer is meant
ALL = [f"Net.{name}" for name in MLP]


def epochs(
    trained_by: str, *, count: int = 4, rates: tuple[float, float] = (0.1, 0.1), second: int = 0
) -> TraceBuilder:
    """Two optimizers, the second over the last parameters; epochs of two steps, then a schedule.

    The scheduler belongs to opt0. second: index of the first parameter that opt1 holds.
    """
    trace = TraceBuilder().process().model("Net", MLP)
    trace.optimizer(names=ALL[: second or None], lr=rates[0])
    trace.optimizer(names=ALL[second:], lr=rates[1])
    rate = rates[0]
    for _ in range(count):
        for _ in range(2):
            trace.begin_step().zero_grad().forward().backward().optimizer_step(trained_by)
        rate *= 0.5
        schedule(trace, lr=rate)
    return trace


BROKEN = epochs("opt1").build()


def test_fires_where_the_optimizer_was_made_anew() -> None:
    finding = fires("TC216", BROKEN)
    assert finding.first_step == 2  # the first that opt1 makes after a step of the scheduler
    assert mentions(finding, "opt0", "opt1")
    assert mentions(finding, "train.py:40")  # where opt1 was made


@pytest.mark.parametrize(
    "events",
    [
        epochs("opt0"),
        epochs("opt1", count=2),  # one unused step of the scheduler
        epochs("opt1", second=2),  # other parameters
    ],
)
def test_quiet_on_others(events: TraceBuilder) -> None:
    assert quiet("TC216", events.build()) is Verdict.HELD


def test_quiet_on_a_wrapper_that_shares_the_rate() -> None:
    trace = TraceBuilder().process().model("Net", MLP).optimizer(lr=0.1).optimizer(lr=0.1)
    for epoch in range(4):
        for _ in range(2):
            trace.begin_step().zero_grad().forward().backward().optimizer_step("opt1")
        schedule(trace, lr=0.1 / 2**epoch)
        trace.optimizers["opt1"].hyper["lr"] = 0.1 / 2**epoch
    assert quiet("TC216", trace.build()) is Verdict.HELD


def test_quiet_on_optimizers_that_take_turns() -> None:
    trace = TraceBuilder().process().model("Net", MLP).optimizer(lr=0.1).optimizer(lr=0.3)
    for turn in range(12):
        optimizer = "opt1" if turn % 4 else "opt0"
        trace.begin_step().zero_grad().forward().backward().optimizer_step(optimizer)
        schedule(trace, lr=0.1 / (1 + turn))
    assert quiet("TC216", trace.build()) is Verdict.HELD


def test_a_gap_proves_nothing() -> None:
    trace = epochs("opt1", count=2).skipped_steps(1)
    for _ in range(2):
        trace.begin_step().zero_grad().forward().backward().optimizer_step("opt1")
        schedule(trace, lr=0.01)
    assert quiet("TC216", trace.build()) is Verdict.HELD


def apart(
    path: Path,
    *,
    updates: int = 24,
    own: bool = True,
    has_scheduler: bool = False,
    changes: bool = False,
    then: int = 0,
) -> list[Event]:
    """The first optimizer trains; the scheduler is made for the second, and that one later.

    own: the second holds parameters of the first. has_scheduler: the first has one, too; changes:
    its rate is set by hand. then: updates of the second one at last.
    """
    torch.manual_seed(1)
    inputs, labels = torch.randn(16, 5), torch.randint(3, (16,))
    with recording(path / "run") as run:
        model, other = nn.Linear(5, 3), nn.Linear(5, 3)
        first = torch.optim.SGD(model.parameters(), lr=0.1)
        second = torch.optim.Adam((model if own else other).parameters(), lr=0.01)
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(second, 0.9)]
        if has_scheduler:
            schedulers.append(torch.optim.lr_scheduler.StepLR(first, 1000))
        for update in range(updates + then):
            first.zero_grad()
            second.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            (first if update < updates else second).step()
            if changes and update == updates // 2:
                first.param_groups[0]["lr"] = 0.05
            for scheduler in schedulers:
                scheduler.step()
    return run.events


@of_torch
def test_fires_at_the_end_where_it_was_made_for_an_optimizer_that_never_steps(
    tmp_path: Path, golden: Golden
) -> None:
    finding = fires("TC216", apart(tmp_path))
    assert (finding.first_step, finding.violations) == (1, 1)
    golden(finding, numbers=False)
    assert mentions(finding, "opt1 (Adam)", "opt0 (SGD)")


@of_torch
@pytest.mark.parametrize(
    "given",
    [
        {"then": 3},  # the first one was to warm up
        {"has_scheduler": True},  # and the run ended before the second one's turn
        {"changes": True},
        {"own": False},
        {"updates": 10},
    ],
)
def test_quiet_where_the_optimizer_may_train_later_or_others(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    assert quiet("TC216", apart(tmp_path, **given)) is Verdict.HELD
