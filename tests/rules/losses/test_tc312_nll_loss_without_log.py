"""TC312: nll_loss and ctc_loss of what is no log-probability."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.loss_runs import loss_run, tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(values: dict[str, Any]) -> list[Event]:
    return loss_run("nll_loss", input=values, target=tensor((64,), "int64", min=0, max=9))


BROKEN = run(tensor((64, 10), min=-2.0, max=2.5, row_sum_min=-4, row_sum_max=5))


def test_fires_on_raw_outputs() -> None:
    finding = fires("TC312", BROKEN)
    assert finding.first_step == 0
    assert mentions(finding, 2.5)


def test_says_when_it_is_softmax(golden: Golden) -> None:
    softmax = tensor((64, 10), min=0.01, max=0.7, row_sum_min=1.0, row_sum_max=1.0)
    golden(fires("TC312", run(softmax)))


def test_fires_on_log_softmax_over_the_batch(golden: Golden) -> None:
    finding = fires("TC312", run(tensor((64, 10), min=-6.0, max=-3.2)))
    assert finding.first_step == 0
    golden(finding)
    assert mentions(finding, 10, -2.3)


def test_quiet_on_equal_log_probabilities_in_half_precision() -> None:
    even = tensor((64, 10), "bfloat16", min=-2.328125, max=-2.3125)
    assert quiet("TC312", run(even)) is Verdict.HELD


@pytest.mark.parametrize(
    "values",
    [
        tensor((64, 10), min=-9.0, max=-0.1, row_sum_min=-40, row_sum_max=-20),
        tensor((64, 10), min=-9.0, max=1e-6, row_sum_min=-40, row_sum_max=-20),
        tensor((64, 10)),
    ],
)
def test_quiet_on_log_probabilities(values: dict[str, Any]) -> None:
    assert quiet("TC312", run(values)) is Verdict.HELD


def speech(**stats: float) -> list[Event]:
    """Twelve moments of four recordings, five classes."""
    return loss_run("ctc_loss", log_probs=tensor((12, 4, 5), **stats), targets=tensor((4, 3)))


def test_ctc_loss_of_raw_outputs() -> None:
    finding = fires("TC312", speech(min=-1.0, max=1.5))
    assert mentions(finding, "ctc_loss")


def test_ctc_loss_of_log_softmax_over_time(golden: Golden) -> None:
    golden(fires("TC312", speech(min=-6.0, max=-2.3)))


def test_quiet_on_ctc_loss_of_log_probabilities() -> None:
    assert quiet("TC312", speech(min=-6.0, max=-1.5)) is Verdict.HELD


def distilled(**stats: float) -> list[Event]:
    return loss_run("kl_div", input=tensor((64, 10), **stats), target=tensor((64, 10)))


def test_kl_div_of_probabilities_or_raw_outputs(golden: Golden) -> None:
    softmax = distilled(min=0.01, max=0.7, row_sum_min=1.0, row_sum_max=1.0)
    golden(fires("TC312", softmax))
    assert mentions(fires("TC312", distilled(min=-3.0, max=2.0)), "kl_div")


def test_quiet_on_kl_div_of_log_probabilities() -> None:
    """Over whichever dim: attention maps are compared, too."""
    assert quiet("TC312", distilled(min=-9.0, max=-6.0)) is Verdict.HELD
