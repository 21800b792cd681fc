"""TC031: sums of losses of which only a part is trained on, on real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.provenance.losses import HEALTHY, every_second
from tests.rules.provenance.training import Loss, Parts, trained
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(*used: bool | None) -> list[Event]:
    """A run whose steps have a sum that is used, is not, or do not have one."""
    trace = net()
    for is_used in used:
        trace.begin_step().zero_grad().forward().backward()
        if is_used is not None:
            dropped = [] if is_used else ["kl_div (train.py:8)"]
            parts = {"trained": ["mse_loss (train.py:7)"], "dropped": dropped, "is_used": is_used}
            trace.mark("loss sums", sums=[{"where": "train.py:9", **parts}], at=0)
        trace.optimizer_step()
    return trace.begin_step().build()


BROKEN = run(False, False, False)


def test_fires_on_a_sum_of_three_steps() -> None:
    finding = fires("TC031", run(False, None, False, False, False))
    assert (finding.first_step, finding.violations) == (0, 1)
    assert mentions(finding.observed, "mse_loss", "kl_div", "train.py:9")


def test_quiet_where_the_sum_is_used_in_a_step() -> None:
    assert quiet("TC031", run(False, False, True, False)) is Verdict.HELD
    assert quiet("TC031", run(False, False)) is Verdict.HELD


def test_a_finding_is_withdrawn_when_the_sum_is_trained_later() -> None:
    assert quiet("TC031", run(False, False, False, False, True)) is Verdict.HELD


def test_not_triggered_without_sums() -> None:
    assert quiet("TC031", net().steps(4).build()) is Verdict.NOT_TRIGGERED


# -- real programs


def only_logged(p: Parts) -> Tensor:
    out = p.out
    loss = F.cross_entropy(out, p.y)
    aux = F.mse_loss(out, torch.zeros(16, 4))
    total = loss + 0.25 * aux
    assert total.item() > 0
    return loss


def only_auxiliary(p: Parts) -> Tensor:
    """A function that returns the wrong one of two losses, both written by hand."""
    out = p.out
    first, second = (out**2).mean(), (p.other(p.x) - out).abs().mean()
    total = first - second
    return second if total.isfinite() else total


def in_a_list(p: Parts) -> Tensor:
    out = p.out
    parts = [F.cross_entropy(out, p.y), 0.1 * F.mse_loss(out, torch.zeros(16, 4))]
    assert sum(parts, torch.zeros(())).item() > 0
    return parts[0]


@pytest.mark.parametrize("loss", [only_logged, only_auxiliary, in_a_list])
def test_fires_on_real_programs(tmp_path: Path, loss: Loss) -> None:
    finding = fires("TC031", trained(tmp_path, loss))
    assert mentions(finding.observed, "test_tc031_dropped_loss_sum.py")


@pytest.mark.parametrize("loss", HEALTHY, ids=lambda loss: loss.__name__)
def test_quiet_on_healthy_losses(tmp_path: Path, loss: Loss) -> None:
    assert quiet("TC031", trained(tmp_path, loss)) is not Verdict.VIOLATED


def test_quiet_on_a_term_of_every_second_step(tmp_path: Path) -> None:
    assert quiet("TC031", trained(tmp_path, every_second, steps=20)) is Verdict.HELD
