"""TC051: gradients that are handed over once. Real programs; the last also with builders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.builders import TraceBuilder
from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden
from traincheck.schema.events import CallEvent, Event, StateEvent
from traincheck.schema.findings import Verdict

NET = ["Net.fc1.weight", "Net.fc1.bias", "Net.fc2.weight", "Net.fc2.bias"]
LOCAL = ["Local.fc1.weight", "Local.fc1.bias", "Local.fc2.weight", "Local.fc2.bias"]


def shared(steps: int = 6, *, handed: int = 1, assigns: bool = False) -> list[Event]:
    """A worker whose gradients reach the shared model in the first steps only.

    assigns: the program then assigns others, which the next backward pass finds.
    """
    builder = TraceBuilder().process().model("Net").model("Local")
    builder.optimizer(names=[n for n in builder.parameters() if n.startswith("Net.")])
    for step in range(steps):
        builder.begin_step().batch().forward()
        builder.backward(only=None if step < handed else LOCAL)
        if assigns and step >= handed:
            call = builder.events[-1]
            assert isinstance(call, CallEvent)
            builder.mark("gradients written", after=call.span, names=NET)
        builder.optimizer_step()
    events, norm = builder.build(), 1.0
    for place, event in enumerate(events):
        if isinstance(event, StateEvent) and event.role == "gradient" and event.summary is not None:
            norm += 0.01
            events[place] = event.replace(summary=event.summary.replace(stats={"norm": norm}))
    return events


BROKEN = shared()


def test_fires_at_the_fourth_update(golden: Golden) -> None:
    finding = golden(fires("TC051", BROKEN))
    assert (finding.first_step, finding.severity, finding.violations) == (1, "error", 1)


def test_quiet_on_three_updates_or_new_gradients() -> None:
    assert quiet("TC051", shared(3)) is Verdict.HELD
    assert quiet("TC051", shared(6, handed=6)) is Verdict.HELD
    assert quiet("TC051", shared(6, assigns=True)) is Verdict.HELD


def make() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def worker(*, once: bool) -> None:
    """A3C: each worker computes gradients on a copy and hands them to the shared model."""
    net, local = make(), make()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(8):
        local.load_state_dict(net.state_dict())
        local.zero_grad()
        local(torch.randn(16, 6)).square().mean().backward()
        for mine, theirs in zip(local.parameters(), net.parameters()):
            if theirs.grad is None or not once:
                theirs.grad = mine.grad
        optimizer.step()


def masters(*, once: bool) -> None:
    """float32 copies that get the gradients of a low-precision model."""
    net = make().bfloat16()
    copies = [nn.Parameter(p.detach().float()) for p in net.parameters()]
    optimizer = torch.optim.SGD(copies, 1e-2)
    for _ in range(8):
        net.zero_grad()
        net(torch.randn(16, 6).bfloat16()).float().square().mean().backward()
        for copy, parameter in zip(copies, net.parameters()):
            if copy.grad is None or not once:
                assert parameter.grad is not None
                copy.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for copy, parameter in zip(copies, net.parameters()):
                parameter.copy_(copy)


def adversaries() -> None:
    maker, judge = make(), make()
    ours = torch.optim.Adam(maker.parameters(), 1e-3)
    theirs = torch.optim.Adam(judge.parameters(), 1e-3)
    for _ in range(6):
        theirs.zero_grad()
        judge(torch.randn(8, 6)).mean().backward()
        theirs.step()
        ours.zero_grad()
        maker(torch.randn(8, 6)).square().mean().backward()
        ours.step()


def linear_loss() -> None:
    net, other = nn.Linear(6, 1), nn.Linear(6, 1)
    optimizer, x = torch.optim.SGD(net.parameters(), 1e-2), torch.ones(4, 6)
    for _ in range(8):
        optimizer.zero_grad()
        (net(x) + other(x)).sum().backward()
        optimizer.step()


def recorded(path: Path, program: Callable[[], None]) -> list[Event]:
    torch.manual_seed(0)
    with recording(path) as run:
        program()
    return run.events


@pytest.mark.parametrize("program", [worker, masters])
def test_fires_on_gradients_that_are_handed_over_once(
    tmp_path: Path, program: Callable[..., None]
) -> None:
    finding = fires("TC051", recorded(tmp_path, lambda: program(once=True)))
    assert (finding.first_step or 0) <= 2


@pytest.mark.parametrize("program", [worker, masters])
def test_quiet_on_gradients_that_are_handed_over_each_time(
    tmp_path: Path, program: Callable[..., None]
) -> None:
    assert quiet("TC051", recorded(tmp_path, lambda: program(once=False))) is not Verdict.VIOLATED


@pytest.mark.parametrize("program", [adversaries, linear_loss])
def test_quiet_on_other_programs(tmp_path: Path, program: Callable[[], None]) -> None:
    assert quiet("TC051", recorded(tmp_path, program)) is not Verdict.VIOLATED
