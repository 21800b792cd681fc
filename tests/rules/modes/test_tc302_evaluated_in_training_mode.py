"""TC302: evaluation in training mode."""

from __future__ import annotations

from typing import Any

from tests.checking import BY_CODE, Alone, fires, net, quiet
from tests.rules.window import batch, dropout, forward
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(
    *,
    mode: bool,
    inner: dict[str, Any] | None = None,
    loader: str | None = "loader1",
    passes: int = 1,
) -> list[Event]:
    trace = net()
    for step in range(4):
        batch(trace.begin_step(), step)
        forward(trace.zero_grad(), dropout("Net.drop", on=True)).backward().optimizer_step()
        for index in range(3):
            if loader is not None:
                batch(trace, index, loader=loader)
            for _ in range(passes):
                drop = dropout("Net.drop", on=mode) if inner is None else inner
                forward(trace, drop, mode=mode, grad=False)
    return trace.build()


BROKEN = loop(mode=True)


def test_fires_without_eval() -> None:
    finding = fires("TC302", BROKEN)
    assert finding.first_step == 0
    assert finding.subject.module == "Net"
    assert finding.stage == "eval"


def transformed(*, mode: bool) -> list[Event]:
    """A dataset whose transform is a module: it runs before its batch is there."""
    trace = net()
    for step in range(4):
        trace.begin_step().call(
            "__main__.Normalize.forward",
            family=Families.MODULE,
            module="Normalize",
            root=True,
            training=True,
        )
        batch(trace, step)
        forward(trace.zero_grad(), dropout("Net.drop", on=True)).backward().optimizer_step()
        for index in range(3):
            batch(trace, index, loader="loader1")
            forward(trace, dropout("Net.drop", on=mode), mode=mode, grad=False)
    return trace.build()


def test_a_transform_trains_on_nothing() -> None:
    assert fires("TC302", transformed(mode=True)).first_step == 0
    assert quiet("TC302", transformed(mode=False)) is Verdict.HELD


def test_quiet_with_eval() -> None:
    assert quiet("TC302", loop(mode=False)) is Verdict.HELD


def test_quiet_on_monte_carlo_dropout() -> None:
    assert quiet("TC302", loop(mode=True, passes=3)) is Verdict.NOT_TRIGGERED


def test_quiet_on_the_training_loader_or_without_one() -> None:
    assert quiet("TC302", loop(mode=True, loader="loader0")) is Verdict.HELD
    assert quiet("TC302", loop(mode=True, loader=None)) is Verdict.NOT_TRIGGERED


def test_quiet_where_modes_make_no_difference() -> None:
    inner = {"api": "torch.nn.functional.relu"}
    assert quiet("TC302", loop(mode=True, inner=inner)) is Verdict.NOT_TRIGGERED


def test_told_while_the_run_goes_on() -> None:
    monitor = Alone(BY_CODE["TC302"])
    told = [event.step for event in BROKEN for _ in monitor.observe(event)]
    assert told == [2]  # after the third round
    assert list(monitor.finish()) == []


def test_told_at_the_end_of_a_short_run() -> None:
    monitor = Alone(BY_CODE["TC302"])
    events = [event for event in BROKEN if event.step is not None and event.step < 2]
    assert not [violation for event in events for violation in monitor.observe(event)]
    assert len(list(monitor.finish())) == 1
