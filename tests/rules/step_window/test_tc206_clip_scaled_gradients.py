"""TC206: clipping of gradients that carry the loss scale."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builders import MLP, SGD, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.window import clip, scale, scaler_step, unscale
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(
    steps: int = 3, *, unscales: bool, enabled: bool = True, limit: object = 1.0
) -> TraceBuilder:
    trace = net()
    for _ in range(steps):
        scale(trace.begin_step().zero_grad().forward(), enabled=enabled).backward()
        if unscales:
            unscale(trace)
        clip(trace, limit, norm=73271.0)
        scaler_step(trace, enabled=enabled)
        trace.call(Families.SCALER_UPDATE)
    return trace


BROKEN = loop(unscales=False).build()


def test_fires_without_unscale() -> None:
    finding = fires("TC206", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 2)
    assert finding.subject.api == Families.CLIP_NORM
    assert mentions(finding, "7.327e+04", "train.py:86")


def test_quiet_with_unscale() -> None:
    assert quiet("TC206", loop(unscales=True).build()) is Verdict.NOT_TRIGGERED


def test_quiet_when_the_scaler_is_disabled() -> None:
    assert quiet("TC206", loop(unscales=False, enabled=False).build()) is Verdict.NOT_TRIGGERED


def test_quiet_when_it_only_measures() -> None:
    assert quiet("TC206", loop(unscales=False, limit="inf").build()) is Verdict.HELD


def test_quiet_without_a_scaler() -> None:
    trace = net()
    for _ in range(3):
        clip(trace.begin_step().zero_grad().forward().backward()).optimizer_step()
    assert quiet("TC206", trace.build()) is Verdict.NOT_TRIGGERED


def parts(
    *unscaled: str, count: int | None = 4, owner: str | None = None, tied: bool = False
) -> TraceBuilder:
    """Two optimizers over a half of the model each; ``count`` of the parameters are clipped."""
    names = [f"Net.{name}" for name in MLP]
    trace = TraceBuilder().process().model("Net", MLP)
    if tied:
        first = trace.models["Net"].parameters[names[0]]
        trace.state(replace(first, name="Net.tied"), "parameter", "new")
    trace.optimizer(names=names[:2]).optimizer(SGD, names=names[2:])
    for _ in range(3):
        trace.begin_step().zero_grad("opt0").zero_grad("opt1")
        scale(trace.forward()).backward()
        for name in unscaled:
            unscale(trace, name)
        clip(trace, parameters=count)
        for name in ("opt0", "opt1"):
            scaler_step(trace, owner or name)
        trace.call(Families.SCALER_UPDATE)
    return trace


def test_fires_where_one_of_two_optimizers_is_unscaled(golden: Golden) -> None:
    finding = fires("TC206", parts("opt0").build())
    assert (finding.first_step, finding.last_step) == (0, 2)
    golden(finding)
    assert mentions(finding, "scaler.unscale_", "opt1 (SGD)", "clip_grad_norm_()")
    assert not mentions(finding.message, "opt0")
    assert mentions(fires("TC206", parts("opt1", count=3).build()), "opt0 (Adam)")


@pytest.mark.parametrize(
    ("trace", "verdict"),
    [
        (parts("opt0", "opt1"), Verdict.NOT_TRIGGERED),
        (parts("opt0", count=2), Verdict.HELD),  # its own
        (parts("opt0", count=3, tied=True), Verdict.HELD),  # one of them comes twice
        (parts("opt0", count=None), Verdict.HELD),  # a generator, of nobody knows what
        (parts("opt0", owner="opt0"), Verdict.HELD),  # the other one is not stepped by the scaler
    ],
)
def test_quiet_where_those_that_are_clipped_are_unscaled(
    trace: TraceBuilder, verdict: Verdict
) -> None:
    assert quiet("TC206", trace.build()) is verdict


def test_quiet_on_a_critic_that_gets_gradients_of_the_generator() -> None:
    """They carry the scale for as long as the critic's zero_grad() has not come."""
    names = [f"Net.{name}" for name in MLP]
    trace = TraceBuilder().process().model("Net", MLP)
    trace.optimizer(names=names[:2]).optimizer(SGD, names=names[2:])
    for _ in range(3):
        trace.begin_step()
        for turn, reached in (("opt0", names[:2]), ("opt1", names)):
            scale(trace.zero_grad(turn).forward()).backward(reached)
            unscale(trace, turn)
            clip(trace, parameters=2)
            scaler_step(trace, turn)
        trace.call(Families.SCALER_UPDATE)
    assert quiet("TC206", trace.build()) is Verdict.HELD
