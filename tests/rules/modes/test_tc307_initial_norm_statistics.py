"""TC307: an average of weights that is evaluated with a batch norm that never saw a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.models import AuxiliaryInitialNorms


def evaluated(*weights: str, first: int = 1) -> list[Event]:
    """Steps from ``first`` on, each of which evaluates a copy with these weights."""
    trace = net().steps(first)
    for content in weights:
        trace.begin_step().mark(AuxiliaryInitialNorms.text, model="Ema", weights=content)
        trace.zero_grad().forward().backward().optimizer_step()
    return trace.build()


BROKEN = evaluated("a", "b", "c")


def test_fires_once_a_copy_has_other_weights() -> None:
    finding = fires("TC307", BROKEN)
    assert (finding.first_step, finding.subject.module, finding.violations) == (2, "Ema", 1)


def test_quiet_on_models_that_rest_and_before_training() -> None:
    assert quiet("TC307", evaluated("a", "a", "a")) is Verdict.HELD
    assert quiet("TC307", evaluated("a", "b", first=0)) is Verdict.HELD


Average = Callable[[nn.Module], nn.Module]
DATA = [torch.randn(8, 1, 6, 6) for _ in range(2)]


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))


def parameters_alone(source: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for theirs, ours in zip(target.parameters(), source.parameters(), strict=True):
            theirs.lerp_(ours, 0.5)


def with_buffers(source: nn.Module, target: nn.Module) -> None:
    parameters_alone(source, target)
    for theirs, ours in zip(target.buffers(), source.buffers(), strict=True):
        theirs.copy_(ours)


def train(target: nn.Module, source: nn.Module, update: Any, before: Any = None) -> None:
    optimizer = torch.optim.SGD(source.parameters(), lr=0.1)
    for _ in range(3):
        for x in DATA:
            optimizer.zero_grad()
            source(x).logsumexp(1).mean().backward()
            optimizer.step()
            update(source, target)
        if before is not None:
            before(target)
        target.eval()
        with torch.no_grad():
            target(DATA[0])


@pytest.mark.parametrize(
    ("make", "update", "before", "verdict"),
    [
        (AveragedModel, lambda s, t: t.update_parameters(s), None, Verdict.NOT_TRIGGERED),
        (copy.deepcopy, parameters_alone, lambda t: update_bn(DATA, t), Verdict.NOT_TRIGGERED),
        (
            lambda m: AveragedModel(
                m, multi_avg_fn=get_ema_multi_avg_fn(), use_buffers=Verdict.VIOLATED
            ),
            lambda s, t: t.update_parameters(s),
            None,
            Verdict.NOT_TRIGGERED,
        ),
        (copy.deepcopy, parameters_alone, None, Verdict.VIOLATED),
        (copy.deepcopy, with_buffers, None, Verdict.NOT_TRIGGERED),
        (
            copy.deepcopy,
            lambda s, t: t.load_state_dict(s.state_dict()),
            None,
            Verdict.NOT_TRIGGERED,
        ),
        (copy.deepcopy, lambda s, t: None, None, Verdict.HELD),  # random features
    ],
)
def test_averages_of_a_recorded_run(
    tmp_path: Path, make: Average, update: Any, before: Any, verdict: Verdict
) -> None:
    source = model()
    with recording(tmp_path / "run") as run:
        train(make(source), source, update, before)
    if verdict is Verdict.VIOLATED:
        assert fires("TC307", run.events).severity == "warning"
    else:
        assert quiet("TC307", run.events) is verdict


def test_quiet_on_a_model_that_is_trained(tmp_path: Path) -> None:
    source = model().eval()
    with recording(tmp_path / "run") as run:
        train(source, source, lambda s, t: None)
    assert not run.marks(AuxiliaryInitialNorms.text)
