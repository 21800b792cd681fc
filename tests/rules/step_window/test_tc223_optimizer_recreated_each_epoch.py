"""TC223: an optimizer that is created again in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import ADAM, MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

SGD = "torch.optim.sgd.SGD"


def epochs(
    count: int = 4,
    *,
    each: int = 1,
    steps: int = 3,
    options: Callable[[int], dict[str, Any]] = lambda _: {},
    loader: Callable[[int], str] = lambda _: "loader0",
    between: Callable[[TraceBuilder, int], Any] = lambda _trace, _epoch: None,
) -> list[Event]:
    """Epochs of some steps. each: so many have one optimizer. between: what comes before it."""
    trace = TraceBuilder().process().model("Net", MLP)
    for epoch in range(count):
        if epoch % each == 0:
            between(trace, epoch)
            trace.optimizer(**options(epoch))
        owner = f"opt{epoch // each}"
        for index in range(steps):
            trace.begin_step().batch(loader(epoch), epoch=epoch, index=index)
            trace.zero_grad(owner).forward().backward().optimizer_step(owner)
    return trace.build()


BROKEN = epochs()


def test_fires_where_the_second_one_begins(golden: Golden) -> None:
    finding = fires("TC223", BROKEN)
    assert (finding.first_step, finding.violations) == (3, 1)
    assert mentions(finding, "opt0, opt1 and opt2 (Adam)")
    golden(finding)


def test_fires_on_sgd_with_momentum_only() -> None:
    fires("TC223", epochs(options=lambda _: {"cls": SGD, "momentum": 0.9}))
    plain = epochs(options=lambda _: {"cls": SGD, "momentum": 0})
    assert quiet("TC223", plain) is Verdict.NOT_TRIGGERED


@pytest.mark.parametrize(
    "events",
    [
        epochs(each=4),  # one for all
        epochs(2),  # two phases
        epochs(8, each=2),  # phases of some epochs
        epochs(options=lambda epoch: {"lr": 0.1 / (1 + epoch)}),
        epochs(options=lambda epoch: {"names": [f"Net.{name}" for name in list(MLP)[epoch:]]}),
        epochs(options=lambda epoch: {"cls": (ADAM, "torch.optim.adamw.AdamW")[epoch % 2]}),
        epochs(loader=lambda epoch: f"loader{epoch}"),  # tasks, or folds
        epochs(steps=1),
        epochs(between=lambda trace, epoch: trace.load("Net") if epoch else None),
        epochs(between=lambda trace, _epoch: trace.call("torch.nn.init.kaiming_uniform_")),
    ],
)
def test_quiet_where_it_may_be_meant(events: list[Event]) -> None:
    assert quiet("TC223", events) is Verdict.HELD


def test_quiet_on_an_optimizer_that_gets_its_state_back() -> None:
    restored = epochs(between=lambda trace, epoch: trace.load(f"opt{epoch - 1}") if epoch else None)
    assert quiet("TC223", restored) is Verdict.HELD
