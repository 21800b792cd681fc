"""Each number of a monitored run equals one that is computed offline in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from tests.metrics.networks import NETWORKS, batches, loss_of, made
from tests.metrics.offline import FORMULAS, Offline
from traincheck.metrics.series import Metrics
from traincheck.metrics.trace import combine
from traincheck.schema.claims import Needs
from traincheck.schema.metrics.requests import MonitorView, parse_requests

ALL = ",".join(FORMULAS)
VIEW = MonitorView(
    requests=parse_requests(
        [
            f"act:{ALL}",
            f"in:{ALL}",
            "act_grad:rms,mean,absmax",
            "param:norm,mean,std,skewness,kurtosis,count",
            "grad:norm,mean,absmax,zeros",
            "clip:norm,mean",
            "update:ratio,rms,absmax,mean",
            "state:rms,mean",
        ]
    )
)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rows: list[torch.Tensor]) -> None:
    for batch in rows:
        optimizer.zero_grad()
        loss_of(model(batch)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def monitored(folder: Path, kind: str, view: MonitorView = VIEW) -> tuple[Metrics, nn.Module]:
    with recording(folder, needs=Needs(), monitor=view.to_json()) as run:
        model, optimizer = made(kind)
        train(model, optimizer, batches(kind))
    return combine(run.events, view), model


@pytest.mark.parametrize("kind", NETWORKS)
def test_numbers_are_those_of_float64(tmp_path: Path, kind: str) -> None:
    metrics, monitored_model = monitored(tmp_path / "run", kind)
    model, optimizer = made(kind)
    offline = Offline(model, optimizer, type(model).__name__)
    for batch in batches(kind):
        offline.train(batch)
    names = {key.rpartition("/")[0] for key in metrics}
    assert names == set(offline.found)
    assert metrics.steps == [0, 1, 2, 3]
    for key, values in metrics.items():
        name, _, statistic = key.rpartition("/")
        for step in offline.found[name]:
            expected = offline.statistic(name, statistic, step)
            assert (expected is None) == (step not in values), (key, step)
            if expected is not None:
                assert values[step] == pytest.approx(expected, rel=1e-6, abs=1e-9), (key, step)
    for one, other in zip(monitored_model.parameters(), model.parameters()):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", NETWORKS)
def test_training_is_bit_identical(tmp_path: Path, kind: str) -> None:
    _, measured = monitored(tmp_path / "run", kind)
    state = torch.get_rng_state()
    model, optimizer = made(kind)
    train(model, optimizer, batches(kind))
    assert torch.equal(state, torch.get_rng_state())
    for (name, one), (_, other) in zip(measured.state_dict().items(), model.state_dict().items()):
        assert torch.equal(one, other), name
