"""TC030: terms of a loss that have no gradient, on real programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def term(name: str = "cross_entropy", **data: Any) -> dict[str, Any]:
    plain = {"where": "train.py:9", "weight": 0.3, "elements": 16, "weighted_by_itself": False}
    return {"name": name, **plain, **data}


def constant(value: float, weight: float = 0.7, **data: Any) -> dict[str, Any]:
    plain = {"name": "kl_div", "where": "train.py:8", "number": False}
    return {**plain, "value": value, "weight": weight, **data}


def run(*steps: dict[str, Any]) -> list[Event]:
    trace = net()
    for constants in steps:
        trace.begin_step().zero_grad().forward().backward()
        trace.mark("loss terms", terms=[term()], constants=[constants])
        trace.optimizer_step()
    return trace.begin_step().build()


BROKEN = run(constant(0.5), constant(0.6), constant(0.4))


def test_fires_on_a_constant_of_three_steps() -> None:
    finding = fires("TC030", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.subject.api == "torch.nn.functional.kl_div"
    assert mentions(finding.observed, "kl_div", "train.py:8", "0.7")


def test_quiet_on_one_constant_and_on_a_number_that_is_no_multiple() -> None:
    assert quiet("TC030", run(constant(0.5))) is Verdict.HELD
    numbers = [constant(v, w, number=True) for v, w in ((1, 0.1), (2, 0.1), (3, 0.1), (4, 0.2))]
    assert quiet("TC030", run(*numbers)) is Verdict.HELD
    same = [constant(1.0, 0.1, number=True)] * 5
    assert quiet("TC030", run(*same)) is Verdict.HELD


def test_fires_on_a_number_that_is_a_multiple_of_a_loss() -> None:
    numbers = [constant(value, 0.1, number=True) for value in (1.0, 2.0, 3.0, 4.0)]
    assert mentions(fires("TC030", run(*numbers)).fix, ".item()")


def test_not_triggered_without_marks() -> None:
    assert quiet("TC030", net().steps(4).build()) is Verdict.NOT_TRIGGERED


# -- real programs


def teacher_with_itself(p: Parts) -> Tensor:
    """The student's logits are the teacher's."""
    logits = p.teacher(p.x)
    soft = F.kl_div(logits.log_softmax(-1), p.teacher(p.x).softmax(-1), reduction="batchmean")
    return 0.3 * F.cross_entropy(p.out, p.y) + 0.7 * soft


def not_reduced(p: Parts) -> Tensor:
    soft = F.kl_div(p.teacher(p.x).log_softmax(-1), p.out.detach().softmax(-1), reduction="none")
    return F.cross_entropy(p.out, p.y) + soft.sum(-1).mean() / 2


def critic_without_graph(p: Parts) -> Tensor:
    with torch.no_grad():
        critic = F.mse_loss(p.other(p.x), torch.randn(16, 4))
    policy = -(p.out.log_softmax(-1)[:, 0] * torch.randn(16)).mean()
    return policy + 0.5 * critic


def detached(p: Parts) -> Tensor:
    return F.cross_entropy(p.out, p.y) - F.l1_loss(p.other(p.x), torch.ones(16, 4)).detach()


def in_place(p: Parts) -> Tensor:
    loss = F.cross_entropy(p.out, p.y)
    loss += -0.2 * F.mse_loss(p.teacher(p.x), torch.zeros(16, 4))
    return loss


def summed(p: Parts) -> Tensor:
    parts = [F.cross_entropy(p.out, p.y), F.mse_loss(p.teacher(p.x), torch.zeros(16, 4))]
    return torch.zeros(()) + sum(parts)


def as_number(p: Parts) -> Tensor:
    return F.cross_entropy(p.out, p.y) + 0.1 * F.mse_loss(p.other(p.x), torch.ones(16, 4)).item()


@pytest.mark.parametrize(
    ("loss", "name", "weight"),
    [
        (teacher_with_itself, "kl_div", "0.7 x"),
        (not_reduced, "kl_div", "0.5 x"),
        (critic_without_graph, "mse_loss", "0.5 x"),
        (detached, "l1_loss", "-1 x"),
        (in_place, "mse_loss", "-0.2 x"),
        (summed, "mse_loss", "1 x"),
        (as_number, "mse_loss", "0.1 x"),
    ],
)
def test_fires_on_real_programs(tmp_path: Path, loss: Loss, name: str, weight: str) -> None:
    finding = fires("TC030", trained(tmp_path, loss))
    assert mentions(finding.observed, name, "test_tc030_constant_loss_term.py", weight)


@pytest.mark.parametrize("loss", HEALTHY, ids=lambda loss: loss.__name__)
def test_quiet_on_healthy_losses(tmp_path: Path, loss: Loss) -> None:
    assert quiet("TC030", trained(tmp_path, loss)) is Verdict.HELD
