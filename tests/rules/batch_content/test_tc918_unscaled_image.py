"""TC918: images in 0..255."""

from __future__ import annotations

import pytest

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import leaf, run_on
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def batches(shape: tuple[int, ...], low: float, high: float, dtype: str = "float32", n: int = 3):
    """Steps on batches of one tensor with these extremes."""
    tensor = leaf(shape=shape, dtype=dtype, stats={"min": low, "max": high, "nonfinite": 0})
    return run_on([{"leaves": {"batch[0]": tensor}}] * n)


BROKEN = batches((8, 3, 32, 32), 0, 255)


def test_fires_in_the_third_batch(golden: Golden) -> None:
    finding = fires("TC918", BROKEN)
    assert mentions(finding, "loader0 batch[0]")
    golden(finding)
    assert mentions(finding, 0, 255)


def test_fires_when_everything_is_far_below_zero(golden: Golden) -> None:
    finding = fires("TC918", batches((8, 3, 32, 32), -200, -199))
    golden(finding)
    assert mentions(finding, -200, -199)


@pytest.mark.parametrize(
    "events",
    [
        batches((8, 1, 80, 80), -80, 0),  # decibels
        batches((8, 1, 64, 64), -1000, 400),  # Hounsfield units
        batches((8, 3, 32, 32), 0, 1),
        batches((8, 3, 32, 32), -2, 60),
        batches((8, 60), 0, 60),
        batches((8, 1), 0, 255),
        batches((8, 3, 32, 32), 0, 255, "uint8"),
        batches((8, 64, 4, 4), 0, 255),
        batches((8, 3, 32, 32), 0, 255, n=2),
    ],
)
def test_quiet_on_others(events: list) -> None:
    assert quiet("TC918", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


CONV, LINEAR = "torch.nn.modules.conv.Conv2d.forward", "torch.nn.modules.linear.Linear.forward"


def cast(
    given: tuple[int, ...] = (8, 3, 32, 32),
    high: float = 255,
    *,
    came: tuple[int, ...] = (8, 3, 32, 32),
    dtype: str = "uint8",
    api: str = CONV,
    n: int = 3,
) -> list[Event]:
    """Steps in which images come as ``came`` and the first layer is ``given`` a tensor."""
    trace = net()
    for _ in range(n):
        images = leaf(shape=came, dtype=dtype, stats={"min": 0, "max": 255})
        trace.begin_step().batch(leaves={"batch[0]": images}).zero_grad().forward()
        tensor = leaf(shape=given, stats={"min": 0, "max": high})
        trace.call(api, family=Families.MODULE, module="Net.conv", args={"0": tensor})
        trace.backward().optimizer_step()
    return trace.build()


@pytest.mark.parametrize(
    "events",
    [
        cast(),
        cast((8, 3, 24, 24)),
        cast((8, 3072), api=LINEAR),
        cast(came=(8, 32, 32, 3)),
        cast((8, 1, 28, 28), came=(8, 28, 28)),
    ],
)
def test_fires_when_bytes_are_only_cast(events: list[Event], golden: Golden) -> None:
    finding = fires("TC918", events)
    assert finding.first_step == 2
    golden(finding)
    assert mentions(finding, "Net.conv")


@pytest.mark.parametrize(
    "events",
    [
        cast(high=1),
        cast(n=2),
        cast((8, 60), api=LINEAR),
        cast((8, 3072), api=LINEAR, came=(8, 3072)),  # a table of counts
        cast(dtype="int64"),
    ],
)
def test_quiet_when_bytes_are_scaled_before_the_first_layer(events: list[Event]) -> None:
    assert quiet("TC918", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
