"""TC032: means that are multiplied by a function of themselves, on real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.provenance.losses import HEALTHY
from tests.rules.provenance.training import Loss, Parts, trained
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(*elements: int) -> list[Event]:
    trace = net()
    for count in elements:
        trace.begin_step().zero_grad().forward().backward()
        term = {"name": "cross_entropy", "where": "train.py:9", "weight": 0.4, "elements": count}
        trace.mark("loss terms", terms=[{**term, "weighted_by_itself": True}], constants=[])
        trace.optimizer_step()
    return trace.begin_step().build()


BROKEN = run(16, 16)


def test_fires_in_the_second_step() -> None:
    finding = fires("TC032", run(16, 16, 16))
    assert (finding.first_step, finding.violations) == (1, 1)
    assert mentions(finding.observed, "cross_entropy", "train.py:9", 16)


def test_quiet_on_a_batch_of_one_sample() -> None:
    assert quiet("TC032", run(1, 1, 1)) is Verdict.HELD


# -- real programs


def focal_of_the_mean(p: Parts) -> Tensor:
    mean = F.cross_entropy(p.out, p.y)
    return 0.25 * (1 - torch.exp(-mean)) ** 2 * mean


def focal_of_binary(p: Parts) -> Tensor:
    mean = F.binary_cross_entropy_with_logits(p.out, (p.y[:, None] == torch.arange(4)).float())
    hard = 1 - (-mean).exp()
    return hard.pow(2.0) * mean + 1e-3 * (p.other.weight**2).sum()


def by_hand(p: Parts) -> Tensor:
    mean = -p.out.log_softmax(-1).gather(1, p.y[:, None]).mean()
    return (1 - torch.exp(-mean)) * mean


@pytest.mark.parametrize("loss", [focal_of_the_mean, focal_of_binary, by_hand])
def test_fires_on_real_programs(tmp_path: Path, loss: Loss) -> None:
    assert fires("TC032", trained(tmp_path, loss)).first_step == 2


@pytest.mark.parametrize("loss", HEALTHY, ids=lambda loss: loss.__name__)
def test_quiet_on_healthy_losses(tmp_path: Path, loss: Loss) -> None:
    assert quiet("TC032", trained(tmp_path, loss)) is Verdict.HELD
