"""TC206: clipping of gradients that carry the loss scale."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.rules.window import clip, scale, scaler_step, unscale
from traincheck.schema.apis import Families
from traincheck.schema.findings import Verdict


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
    assert "7.327e+04" in finding.observed
    assert "train.py:86" in finding.likely_cause


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
