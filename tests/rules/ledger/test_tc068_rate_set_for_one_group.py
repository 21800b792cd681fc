"""TC068: a new rate that reaches one group alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.ledger.programs import model, recorded, set_rate, train
from traincheck.schema.events import Event, OptimizerEvent, ParamGroup, StepEvent
from traincheck.schema.findings import Verdict


def grouped(rates: Sequence[tuple[float, float]]) -> list[Event]:
    """Steps of an optimizer with two groups."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(len(rates))
    events: list[Event] = []
    left = iter(rates)
    for event in trace.build():
        if isinstance(event, OptimizerEvent):
            (group,) = event.groups
            hyper = {**group.hyper, "lr": rates[0][0]}
            two = tuple(ParamGroup(hyper, group.params[i::2], group.ids[i::2]) for i in range(2))
            trace.edit(event, groups=two)
        elif isinstance(event, StepEvent):
            trace.edit(event, lr={"opt0": list(next(left))})
    events = trace.build()
    return events


BROKEN = grouped([(0.1, 0.1)] * 3 + [(0.1, 0.01)] * 6)


def test_fires_where_the_last_group_changes() -> None:
    finding = fires("TC068", BROKEN)
    assert (finding.first_step, finding.subject.variable, finding.violations) == (3, "opt0", 1)
    assert mentions(finding, "0.1", "0.01", "last")


@pytest.mark.parametrize(
    "rates",
    [
        [(0.1, 0.1)] * 3 + [(0.01, 0.01)] * 6,
        [(0.1, 0.1)] * 3 + [(0.1, 0.0)] * 6,
        [(0.1, 0.1)] * 3 + [(0.1, 0.01)] * 2 + [(0.1, 0.1)] * 5,
    ],
    ids=["all", "frozen", "back"],
)
def test_quiet_on_what_may_be_meant(rates: list[tuple[float, float]]) -> None:
    assert quiet("TC068", grouped(rates)) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def decayed(change: Callable[[Any], None], *, first: float = 0.1, **extra: Any) -> None:
    """Weights with decay and biases without, whose rate falls after a few updates."""
    trained = model()
    weights = [p for p in trained.parameters() if p.dim() > 1]
    biases = [p for p in trained.parameters() if p.dim() == 1]
    groups = [{"params": weights, "lr": first, **extra}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    train(trained, optimizer, 3)
    change(optimizer)
    train(trained, optimizer, 8)


def first_only(optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.01


def test_fires_on_a_real_program(tmp_path: Path) -> None:
    assert mentions(fires("TC068", recorded(tmp_path, lambda: decayed(first_only))), "first")


def test_quiet_where_the_loop_sets_all(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: decayed(lambda o: set_rate(o.param_groups, 0.01)))
    assert quiet("TC068", events) is Verdict.HELD


@pytest.mark.parametrize("options", [{"first": 0.05}, {"name": "weights"}])
def test_quiet_on_groups_that_are_told_apart(tmp_path: Path, options: Any) -> None:
    events = recorded(tmp_path, lambda: decayed(first_only, **options))
    assert quiet("TC068", events) is Verdict.NOT_TRIGGERED
