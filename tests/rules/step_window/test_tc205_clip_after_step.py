"""TC205: clipping after the step."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.window import clip
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(steps: int, *, late: bool, limit: object = 1.0, style: str = "A") -> TraceBuilder:
    trace = net()
    for _ in range(steps):
        trace.begin_step()
        if style == "A":
            trace.zero_grad()
        trace.forward().backward()
        if not late:
            clip(trace, limit)
        trace.optimizer_step()
        if late:
            clip(trace, limit)
        if style == "B":
            trace.zero_grad()
    return trace


BROKEN = loop(4, late=True).build()


@pytest.mark.parametrize("style", ["A", "B"])
def test_fires_when_it_comes_after(style: str) -> None:
    finding = fires("TC205", loop(4, late=True, style=style).build())
    assert finding.first_step == 0
    assert finding.subject.api == Families.CLIP_NORM
    assert mentions(finding, "train.py:86")


def test_fires_when_it_comes_before_backward(golden: Golden) -> None:
    trace = net()
    for _ in range(4):
        clip(trace.begin_step().zero_grad().forward(), 1.0)
        trace.backward().optimizer_step()
    finding = fires("TC205", trace.build())
    golden(finding)
    assert mentions(finding, "backward()")


def test_fires_in_a_run_of_two_steps() -> None:
    assert fires("TC205", loop(2, late=True).build()).first_step == 0


@pytest.mark.parametrize("style", ["A", "B"])
def test_quiet_when_it_comes_before(style: str) -> None:
    assert quiet("TC205", loop(4, late=False, style=style).build()) is Verdict.HELD


@pytest.mark.parametrize("limit", ["inf", 1e9])
def test_quiet_when_it_only_measures(limit: object) -> None:
    assert quiet("TC205", loop(4, late=True, limit=limit).build()) is Verdict.NOT_TRIGGERED


def test_quiet_when_another_optimizer_is_to_step() -> None:
    trace = TraceBuilder().process().model("G").model("D")
    gen, dis = [[f"{m}.{name}" for name in MLP] for m in "GD"]
    trace.optimizer(names=gen).optimizer(names=dis)
    for _ in range(4):
        trace.begin_step().zero_grad("opt0").zero_grad("opt1").forward().backward()
        trace.optimizer_step("opt0")
        clip(trace)
        trace.optimizer_step("opt1")
    assert quiet("TC205", trace.build()) is Verdict.HELD


def test_quiet_when_it_clips_before_and_after() -> None:
    trace = net()
    for _ in range(4):
        trace.begin_step().zero_grad().forward().backward()
        clip(clip(trace).optimizer_step())
    assert quiet("TC205", trace.build()) is Verdict.HELD
