"""TC207: steps that go past the scaler."""

from __future__ import annotations

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.window import scale, scaler_step, unscale
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(
    steps: int = 3, *, bypass: bool, enabled: bool = True, by_hand: bool = False
) -> TraceBuilder:
    trace = net()
    for _ in range(steps):
        scale(trace.begin_step().zero_grad().forward(), enabled=enabled).backward()
        if by_hand:
            unscale(trace)
        if bypass:
            trace.optimizer_step()
        else:
            scaler_step(trace, enabled=enabled)
    return trace


BROKEN = loop(bypass=True).build()


def test_fires_when_the_optimizer_steps_by_itself() -> None:
    finding = fires("TC207", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 2)
    assert finding.subject.api == Families.OPTIMIZER_STEP
    assert mentions(finding, "train.py:88")


def test_quiet_through_the_scaler() -> None:
    assert quiet("TC207", loop(bypass=False).build()) is Verdict.HELD


def test_quiet_when_disabled_or_unscaled() -> None:
    for trace in (loop(bypass=True, enabled=False), loop(bypass=True, by_hand=True)):
        assert quiet("TC207", trace.build()) is Verdict.NOT_TRIGGERED


def test_quiet_when_another_loss_is_scaled() -> None:
    trace = TraceBuilder().process().model("G").model("D")
    gen, dis = [[f"{m}.{name}" for name in MLP] for m in "GD"]
    trace.optimizer(names=gen).optimizer(names=dis)
    for _ in range(3):
        trace.begin_step().zero_grad("opt0").zero_grad("opt1")
        scale(trace.forward("D")).backward(dis)
        scaler_step(trace, "opt1")
        trace.forward("G").backward(gen).optimizer_step("opt0")
    assert quiet("TC207", trace.build()) is Verdict.HELD
