"""TC704: nothing but zeros to apply."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.numbers import numbered
from traincheck.readings.training_state import TrainingState
from traincheck.schema.events import Event, StateEvent, StepEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

ALL = [f"Net.{name}" for name in MLP]


def run(steps: int, zero: list[str] = ALL, loss: float | None = 0.7) -> list[Event]:
    events = numbered(net().steps(steps).build(), loss=lambda at: loss)
    return [
        e.replace(summary=e.summary.replace(zero=True))
        if isinstance(e, StateEvent) and e.role == "gradient" and e.summary and e.name in zero
        else e
        for e in events
    ]


BROKEN = run(6)


def test_fires_after_five_in_a_row(golden: Golden) -> None:
    finding = fires("TC704", BROKEN)
    assert finding.first_step == 0
    assert finding.subject.api == Families.BACKWARD
    golden(finding)
    assert mentions(finding, 0.7)
    assert quiet("TC704", run(4)) is Verdict.HELD


def test_it_takes_longer_where_the_loss_cannot_be_read() -> None:
    assert quiet("TC704", run(19, loss=None)) is Verdict.HELD
    assert fires("TC704", run(20, loss=None)).first_step == 0


def test_quiet_on_a_loss_of_zero() -> None:
    assert quiet("TC704", run(8, loss=0.0)) is Verdict.HELD


def test_quiet_where_only_some_are_zero() -> None:
    # the A of LoRA, experts that are not chosen
    assert quiet("TC704", run(8, zero=ALL[:3])) is Verdict.HELD


def shared(change: str, *, is_zero: bool = False) -> list[Event]:
    """As in A3C: a worker's backward() computes gradients that the program gives the shared model.

    They are seen after the zero_grad() of the worker, which clears others.
    """
    trace = TraceBuilder().process().model("Shared", MLP).model("Worker", MLP)
    theirs = [f"Shared.{name}" for name in MLP]
    trace.optimizer(names=theirs).train()
    for step in range(8):
        trace.begin_step().batch().forward("Worker")
        span = trace.new_span()
        for name in theirs:
            what = change if step else "set"
            trace.state(trace.parameters()[name], "gradient", what, after=span, zero=is_zero)
        where = {"family": Families.ZERO_GRAD, "module": "Worker", "span": span}
        trace.call("torch.nn.Module.zero_grad", args={"set_to_none": True}, **where)
        trace.backward([f"Worker.{name}" for name in MLP])
        trace.optimizer_step().end_step()
    return numbered(trace.build(), loss=lambda at: 0.7)


@pytest.mark.parametrize("change", ["set", "content", "replaced"])
def test_quiet_where_the_program_gives_a_model_the_gradients_of_another(change: str) -> None:
    assert quiet("TC704", shared(change)) is not Verdict.VIOLATED
    ledger, applied = TrainingState(), []
    for event in shared(change):
        ledger.observe(event)
        if isinstance(event, StepEvent) and ledger.ended is not None:
            applied += [len(m.applied) for m in ledger.ended.updates()]
    assert applied == [len(MLP)] * 8


def test_fires_where_it_gives_zeros() -> None:
    assert fires("TC704", shared("replaced", is_zero=True)).first_step == 0


def test_steps_without_gradient_are_left_to_another_rule() -> None:
    assert quiet("TC704", net().steps(8, style="C").build()) is Verdict.NOT_TRIGGERED
