"""TC313: a loss over all pairs of samples."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.loss_runs import loss_run, tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

Shape = tuple[int, ...]


def run(prediction: Shape, target: Shape, api: str = "mse_loss") -> list[Event]:
    return loss_run(api, input=tensor(prediction), target=tensor(target))


BROKEN = run((64, 1), (64,))


@pytest.mark.parametrize("api", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def test_fires_on_a_column_and_a_row(api: str, golden: Golden) -> None:
    finding = fires("TC313", run((64, 1), (64,), api))
    assert finding.first_step == 0
    golden(finding)
    assert mentions(finding, "[64, 1]", "[64]", 4096)


def test_fires_on_a_target_that_was_broadcast_before(golden: Golden) -> None:
    finding = fires("TC313", run((64,), (64, 64)))
    golden(finding)
    assert mentions(finding, "[64]", "[64, 64]")


@pytest.mark.parametrize(
    ("prediction", "target"),
    [
        ((3,), (64, 3)),
        ((1,), (1, 1)),
        ((64, 1), (64, 1)),
        ((64,), (64,)),
        ((64, 1), (1,)),
        ((64, 80, 3), (64, 1, 3)),
        ((8,), ()),
    ],
)
def test_quiet_on_one_target_for_many(prediction: Shape, target: Shape) -> None:
    assert quiet("TC313", run(prediction, target)) is Verdict.HELD
