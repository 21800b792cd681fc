"""TC201: gradients that are not cleared between two steps of an optimizer."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import StepEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.gradients import UnclearedGradients
from traincheck.schema.torch_api import Families

ALL = [f"Net.{name}" for name in MLP]


def test_fires_at_the_second_step() -> None:
    finding = fires("TC201", net().steps(4, omit={"zero_grad"}).build())
    assert (finding.first_step, finding.last_step) == (1, 3)
    assert finding.variables == tuple(sorted(ALL))
    assert finding.subject.api == Families.ZERO_GRAD
    assert mentions(finding, "train.py:88")


def test_fires_where_zero_grad_is_left_out_later() -> None:
    finding = fires("TC201", net().steps(3).steps(1, omit={"zero_grad"}).steps(2).build())
    assert (finding.first_step, finding.last_step) == (3, 3)


def test_says_what_there_is_in_place_of_the_call(golden: Golden) -> None:
    never = fires("TC201", net().steps(4, omit={"zero_grad"}).build())
    golden(never)
    assert mentions(never, "optimizer.zero_grad()", "optimizer.step()")
    later = net().step().step(omit={"zero_grad"}).step()
    seldom = fires("TC201", later.build())
    golden(seldom)
    assert mentions(seldom, "zero_grad()", "train.py:80")
    copy = net()
    for _ in range(3):
        copy.begin_step()
        copy.call("torch.nn.Module.zero_grad", family=Families.ZERO_GRAD, module="Copy")
        copy.forward().backward().optimizer_step()
    other = fires("TC201", copy.build())
    golden(other)
    assert mentions(other, "zero_grad()", "Net.fc1.weight")


def test_fires_when_another_optimizer_is_cleared() -> None:
    events = TraceBuilder().process().model().optimizer(names=ALL[:2]).optimizer(names=ALL[2:])
    for _ in range(3):
        events.begin_step().zero_grad("opt0").forward().backward()
        events.optimizer_step("opt0").optimizer_step("opt1")
    finding = fires("TC201", events.build())
    assert finding.variables == tuple(sorted(ALL[2:]))
    assert mentions(finding, "opt1")


@pytest.mark.parametrize("style", ["A", "B"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_quiet_wherever_zero_grad_stands(style: str, set_to_none: bool) -> None:
    assert (
        quiet("TC201", net().steps(4, style=style, set_to_none=set_to_none).build()) is Verdict.HELD
    )


@pytest.mark.parametrize("style", ["A", "B"])
def test_quiet_when_looks_follow_backward_only(style: str) -> None:
    # the view that rules ask for does not look after zero_grad: its call has to do
    events = net().steps(4, style=style).build()
    kept = [e for e in events if not (e.kind == "state" and e.change == "cleared")]
    assert len(kept) < len(events)
    assert quiet("TC201", kept) is Verdict.HELD


def test_quiet_when_the_model_is_cleared() -> None:
    events = net()
    for _ in range(4):
        events.begin_step()
        events.call("torch.nn.Module.zero_grad", family=Families.ZERO_GRAD, module="Net")
        events.forward().backward().optimizer_step()
    assert quiet("TC201", events.build()) is Verdict.HELD


def test_fires_when_another_model_is_cleared() -> None:
    events = net()
    for _ in range(3):
        events.begin_step()
        events.call("torch.nn.Module.zero_grad", family=Families.ZERO_GRAD, module="Other")
        events.forward().backward().optimizer_step()
    assert fires("TC201", events.build()).first_step == 1


@pytest.mark.parametrize("change", ["set", "replaced"])
def test_quiet_when_gradients_are_set_to_none_by_hand(change: str) -> None:
    events = net().steps(4, omit={"zero_grad"}).build()
    by_hand = [
        e.replace(change=change) if e.kind == "state" and e.role == "gradient" else e
        for e in events
    ]
    assert quiet("TC201", by_hand) is Verdict.HELD


def test_quiet_on_accumulation() -> None:
    assert quiet("TC201", net().steps(4, accumulate=4).build()) is Verdict.HELD


def test_quiet_on_a_gan() -> None:
    events = TraceBuilder().process().model("G").model("D")
    gen, dis = [[f"{m}.{name}" for name in MLP] for m in "GD"]
    events.optimizer(names=gen).optimizer(names=dis)
    for _ in range(3):
        events.begin_step().zero_grad("opt1").forward("D").backward(dis).optimizer_step("opt1")
        events.zero_grad("opt0").forward().backward().optimizer_step("opt0")
    assert quiet("TC201", events.build()) is Verdict.HELD


@pytest.mark.parametrize("clears", [True, False])
def test_closures(clears: bool) -> None:
    events = net(cls="torch.optim.lbfgs.LBFGS")
    for _ in range(3):
        events.begin_step()
        for _ in range(3):
            if clears:
                events.zero_grad()
            events.forward().backward()
        events.optimizer_step()
    if clears:
        assert quiet("TC201", events.build()) is Verdict.HELD
    else:
        assert fires("TC201", events.build()).first_step == 1


def test_quiet_when_a_gap_lies_between() -> None:
    events = net().step(omit={"zero_grad"}).skipped_steps(2).step(omit={"zero_grad"}).build()
    assert quiet("TC201", events) is Verdict.NOT_TRIGGERED


def single_steps(kept: dict[str, object], clear: str = ""):
    """Steps that are recorded one by one, where nobody sees what the one before has left."""
    events = net().steps(1).skipped_steps(2).begin_step()
    if clear == "before":
        events.zero_grad()
    events.forward().backward()
    if clear == "after":
        events.zero_grad().forward().backward()
    events.optimizer_step()
    if kept:
        events.mark(UnclearedGradients.text, **kept)
    return events.steps(1).build()


def test_fires_in_a_single_step_that_begins_with_gradients_of_the_update_before(
    golden: Golden,
) -> None:
    finding = fires("TC201", single_steps({"owners": ["opt0"], "names": ALL[:2]}))
    assert (finding.first_step, finding.last_step) == (3, 3)
    assert finding.variables == tuple(sorted(ALL[:2]))
    golden(finding)
    assert mentions(finding, 3)


@pytest.mark.parametrize(
    ("kept", "clear"),
    [
        ({}, ""),
        ({"owners": ["opt1"], "names": ALL}, ""),  # nobody has applied what opt0 holds
        ({"owners": ["opt0"], "names": ["Other.weight"]}, ""),
        ({"owners": "opt0", "names": 3}, ""),
        # as before an inner backward: of a penalty, or of the discriminator
        ({"owners": ["opt0"], "names": ALL}, "after"),
        ({}, "before"),
    ],
)
def test_quiet_in_a_single_step_where_nothing_that_was_applied_is_added_to(
    kept: dict[str, object], clear: str
) -> None:
    assert quiet("TC201", single_steps(kept, clear)) is not Verdict.VIOLATED


def test_quiet_when_grad_scaler_skips_a_step() -> None:
    events = net()
    for number in range(4):
        events.begin_step().zero_grad().forward().backward()
        if number != 1:
            events.optimizer_step()
        events.call("torch.amp.GradScaler.step", family=Families.SCALER_STEP)
        events.count(scaler_step=1)
    assert quiet("TC201", events.build()) is Verdict.HELD


def test_looks_that_arrive_at_the_end_of_the_step_count_where_they_were_taken() -> None:
    # as on CUDA: all state events of a step come just before its end
    def late(events: list) -> list:  # type: ignore[type-arg]
        out, waiting = [], []
        for event in events:
            if event.kind == "state" and event.after is not None:
                waiting.append(event)
            else:
                if isinstance(event, StepEvent):
                    out += waiting
                    waiting = []
                out.append(event)
        return out

    assert quiet("TC201", late(net().steps(4).build())) is Verdict.HELD
    assert fires("TC201", late(net().steps(4, omit={"zero_grad"}).build())).first_step == 1
