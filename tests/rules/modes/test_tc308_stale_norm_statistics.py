"""TC308: a mean of weights that is evaluated with the batch norms of the last of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.models import AuxiliaryEval, AuxiliaryTraining


def evaluated(*texts: str) -> list[Event]:
    """Steps in which a mean is evaluated, or called in training mode."""
    trace = net().steps(1)
    for text in texts:
        copied = {"statistics": "copied"} if text == AuxiliaryEval.text else {}
        trace.begin_step().mark(text, model="AveragedModel", weights="a", **copied)
        trace.zero_grad().forward().backward().optimizer_step()
    return trace.build()


BROKEN = evaluated(AuxiliaryEval.text, AuxiliaryEval.text)


def test_fires_once_at_the_first_evaluation() -> None:
    finding = fires("TC308", BROKEN)
    assert (finding.first_step, finding.violations) == (1, 1)
    assert finding.subject.module == "AveragedModel"
    assert mentions(finding, "update_bn(loader, AveragedModel)")


def test_quiet_once_it_was_updated_even_later() -> None:
    assert quiet("TC308", evaluated(AuxiliaryTraining.text, AuxiliaryEval.text)) is Verdict.HELD
    assert quiet("TC308", evaluated(AuxiliaryEval.text, AuxiliaryTraining.text)) is Verdict.HELD


def test_quiet_on_marks_of_the_user() -> None:
    trace = net().steps(1).mark("user: serves", model="A", statistics="copied").steps(1)
    assert quiet("TC308", trace.build()) is Verdict.NOT_TRIGGERED


def test_quiet_where_the_update_may_have_been_left_out() -> None:
    sampled = net().steps(1).mark(AuxiliaryEval.text, model="A", weights="a", statistics="copied")
    assert quiet("TC308", sampled.skipped_steps(2).steps(1).build()) is Verdict.HELD


DATA = [torch.randn(8, 1, 6, 6) for _ in range(2)]


def model(*norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *norm, nn.Flatten(), nn.Linear(64, 3))


def train(source: nn.Module, mean: Any, before: Any, epochs: int) -> None:
    optimizer = torch.optim.SGD(source.parameters(), lr=0.1)
    for _ in range(epochs):
        for x in DATA:
            optimizer.zero_grad()
            source(x).logsumexp(1).mean().backward()
            optimizer.step()
        mean.update_parameters(source)
    before(mean)
    mean.eval()
    with torch.no_grad():
        mean(DATA[0])


EMA = {"multi_avg_fn": get_ema_multi_avg_fn()}


@pytest.mark.parametrize(
    ("norm", "options", "before", "epochs", "verdict"),
    [
        (nn.BatchNorm2d(4), {}, lambda mean: None, 3, Verdict.VIOLATED),
        (nn.BatchNorm2d(4), {}, lambda mean: update_bn(DATA, mean), 3, Verdict.HELD),
        (nn.BatchNorm2d(4), {}, lambda mean: None, 1, Verdict.NOT_TRIGGERED),  # the model itself
        (nn.BatchNorm2d(4), {"use_buffers": True}, lambda mean: None, 3, Verdict.NOT_TRIGGERED),
        (nn.BatchNorm2d(4), EMA, lambda mean: None, 3, Verdict.NOT_TRIGGERED),
        (nn.GroupNorm(2, 4), {}, lambda mean: None, 3, Verdict.NOT_TRIGGERED),
        (
            nn.BatchNorm2d(4, track_running_stats=False),
            {},
            lambda mean: None,
            3,
            Verdict.NOT_TRIGGERED,
        ),
    ],
)
def test_means_of_a_recorded_run(
    tmp_path: Path, norm: nn.Module, options: Any, before: Any, epochs: int, verdict: Verdict
) -> None:
    source = model(norm)
    with recording(tmp_path / "run") as run:
        train(source, AveragedModel(source, **options), before, epochs)
    if verdict is Verdict.VIOLATED:
        assert fires("TC308", run.events).severity == "warning"
    else:
        assert quiet("TC308", run.events) is verdict
