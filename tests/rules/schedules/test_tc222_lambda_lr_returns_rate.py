"""TC222: LambdaLR is given a function that returns the rate itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.window import schedule
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

LAMBDA = "LambdaLR"


def made(trace: TraceBuilder, cls: str = LAMBDA, last_epoch: int = -1) -> TraceBuilder:
    return trace.call(
        f"torch.optim.lr_scheduler.{cls}.__init__",
        family=Families.SCHEDULER_CREATED,
        owner="opt0",
        args={"last_epoch": last_epoch},
        where="train.py:42",
    )


def loop(trace: TraceBuilder, rates: Sequence[float], *, cls: str = LAMBDA) -> list[Event]:
    """An update at each rate, and a step of the scheduler after it."""
    for rate in rates:
        trace.begin_step().zero_grad().forward().backward()
        trace.optimizers["opt0"].hyper["lr"] = rate
        trace.optimizer_step().end_step()
        schedule(trace, cls=cls)
    return trace.build()


FALLING = [1e-4 * 0.9**k for k in range(20)]
BROKEN = loop(made(net(lr=0.01)), FALLING)


def test_fires_on_the_square_of_the_rate(golden: Golden) -> None:
    finding = fires("TC222", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.subject.api == Families.SCHEDULER_STEP
    golden(finding)
    assert mentions(finding, "train.py:42", 0.0001, 0.01)


def test_fires_after_a_warm_up_to_it() -> None:
    fires("TC222", loop(made(net(lr=0.01)), [*FALLING[:5][::-1], *FALLING]))


def test_quiet() -> None:
    resumed = made(net(lr=0.01))
    resumed.add(CheckpointEvent, op="load_state_dict", target="torch.optim.sgd.SGD")
    for events in (
        loop(made(net(lr=0.01)), [0.01 * 0.9**k for k in range(60)]),
        loop(made(net(lr=0.01)), FALLING[::-1]),  # a warm-up that ends there
        loop(made(net(lr=0.01)), [1e-4 * k for k in range(1, 30)]),
        loop(made(net(lr=0.01)), FALLING[:9]),
        loop(made(net(lr=0.01)), [rate * 1.001 for rate in FALLING]),
        loop(made(net(lr=1.0)), [0.9**k for k in range(20)]),
        loop(made(net(lr=0.5)), [0.25 * 0.9**k for k in range(20)]),
        loop(made(net(lr=0.01), last_epoch=3), FALLING),
        loop(made(made(net(lr=0.01))), FALLING),
        loop(made(net(lr=0.01), "StepLR"), FALLING, cls="StepLR"),
        loop(made(net(lr=0.01)), FALLING, cls="SequentialLR"),
        loop(made(net(lr=0.01)).skipped_steps(1), FALLING),
        loop(resumed, FALLING),
        net().steps(20).build(),
    ):
        assert quiet("TC222", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


RATE = 3e-3


@pytest.mark.parametrize(
    ("function", "groups", "is_wrong"),
    [
        (lambda step: RATE * 0.95**step, 1, True),
        (lambda step: RATE * min(1, (step + 1) / 5), 2, True),
        (lambda step: 0.95**step, 1, False),
        (lambda step: min(1, (step + 1) / 1000), 1, False),
        (lambda step: min(1, (step + 1) / 5), 2, False),
    ],
)
def test_recorded_runs(
    tmp_path: Path, function: Callable[[int], float], groups: int, is_wrong: bool
) -> None:
    x, y = torch.randn(8, 5), torch.randint(3, (8,))
    model = nn.Linear(5, 3)
    held = [{"params": [p]} for p in model.parameters()] if groups > 1 else model.parameters()
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.Adam(held, lr=RATE)
        scheduler = lr_scheduler.LambdaLR(optimizer, function)
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()
    if is_wrong:
        assert fires("TC222", run.events).first_step == 0
    else:
        assert quiet("TC222", run.events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
