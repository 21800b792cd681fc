"""TC702: gradients that leave the range of their own history."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet, report_of
from tests.golden import Golden
from tests.rules.numbers import BROKEN as NAN
from tests.rules.numbers import norm, numbered
from tests.rules.window import clip
from traincheck.rules.numerics.tc702_exploding_gradient import ExplodingGradient
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(*norms: float) -> list[Event]:
    return numbered(net().steps(len(norms)).build(), gradient=lambda name, at: norm(norms[at]))


BROKEN = run(1, 2, 1, 3, 2, 500, 4000, 1e5)


def test_fires_when_it_is_confirmed(golden: Golden) -> None:
    finding = fires("TC702", BROKEN)
    assert finding.first_step == 5
    assert finding.subject.variable == "Net.fc1.weight"
    golden(finding)


def test_fires_on_growth_from_the_first_step() -> None:
    assert fires("TC702", run(1, 10, 100, 1000, 1e4, 1e5)).first_step in (0, 1)


def test_clipping_hides_nothing() -> None:
    trace = net()
    for _ in range(8):
        clip(trace.begin_step().zero_grad().forward().backward()).optimizer_step()
    big = numbered(trace.build(), gradient=lambda name, at: norm(1e8 if at > 4 else 1.0))
    assert fires("TC702", big).first_step == 5


@pytest.mark.parametrize(
    "norms",
    [
        [1, 2, 1, 3, 2, 5000, 2, 1, 3],  # one batch
        [30000, 40000, 20000, 60000, 30000, 50000],  # a loss that is summed
        [65536, 131072, 65536, 65536, 131072, 131072],  # scaled
        [1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1, 2, 1, 3],  # rewards that come late
        [0, 0, 0, 0, 0, 0, 5, 4, 5],
        [50, 40, 30, 20, 10, 5, 1, 1e-3, 1e-5],
        [1, 2, 4, 8, 16, 30, 60, 90, 99],
    ],
)
def test_quiet_on_a_healthy_history(norms: list[float]) -> None:
    assert quiet("TC702", run(*norms)) is Verdict.HELD


def test_quiet_on_a_gan_with_gradients_of_two_sizes() -> None:
    trace = TraceBuilder().process().model("G").model("D")
    gen, dis = [[f"{m}.{name}" for name in MLP] for m in "GD"]
    trace.optimizer(names=gen).optimizer(names=dis)
    for _ in range(8):
        trace.begin_step().zero_grad("opt1").forward("D").backward(dis).optimizer_step("opt1")
        trace.zero_grad("opt0").forward().backward().optimizer_step("opt0")
    events = numbered(
        trace.build(), gradient=lambda name, at: norm(500.0 if name.startswith("D") else 0.1)
    )
    assert quiet("TC702", events) is Verdict.HELD


def test_what_is_not_finite_is_left_to_another_rule() -> None:
    events = numbered(
        net().steps(8).build(), gradient=lambda name, at: NAN if at > 4 else norm(1.0)
    )
    assert quiet("TC702", events) is Verdict.HELD


def test_the_threshold_can_be_absolute() -> None:
    rule = ExplodingGradient(threshold=100)
    (finding,) = report_of(run(1, 2, 300), [rule]).findings
    assert finding.first_step == 2
