"""traincheck.probe and watch(probe=True): experiments on a model of this process."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import traincheck
from tests.golden import mentions
from traincheck.errors import UsageError

X, Y = torch.randn(16, 8), torch.arange(16) % 3


class Head(nn.Module):
    """A dueling head. is_broken: the mean is taken over the batch, too."""

    def __init__(self, *, is_broken: bool) -> None:
        super().__init__()
        self.body, self.norm, self.out = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.drop = nn.Dropout(0.2)
        self.is_broken = is_broken

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.drop(torch.tanh(self.norm(self.body(x)))))
        return out - (out.mean() if self.is_broken else out.mean(1, keepdim=True))


def loss(out: Tensor) -> Tensor:
    return F.cross_entropy(out, Y)


def test_it_finds_what_an_experiment_shows() -> None:
    run = traincheck.probe(Head(is_broken=True), X, loss=loss)
    [finding] = run.findings
    assert finding.code == "TC001"
    assert mentions(finding, "mean()")
    status = {each.name: each.status for each in run.experiments}
    assert (status["row_mixing"], status["gradient"]) == ("moved", "held")
    assert "the gradient is that of the loss: Head" in str(run)
    assert "TC001" in run._repr_html_()


def test_a_healthy_model_is_quiet() -> None:
    run = traincheck.probe(Head(is_broken=False), X, loss=loss)
    assert not run.findings
    assert {each.status for each in run.experiments} == {"held"}


def test_without_a_loss_the_model_alone_is_tested() -> None:
    run = traincheck.probe(Head(is_broken=True), x=X)
    assert [finding.code for finding in run.findings] == ["TC001"]
    assert "gradient" not in {each.name for each in run.experiments}


class WithLoss(Head):
    """Returns its loss, as models of transformers do."""

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(loss=loss(super().forward(x)))


def test_the_loss_of_a_result_is_taken() -> None:
    run = traincheck.probe(WithLoss(is_broken=False), X)
    assert "gradient" in {each.name for each in run.experiments if each.status == "held"}


def test_nothing_of_the_program_changes() -> None:
    model = Head(is_broken=True).eval()
    model.out.bias.grad = torch.ones(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    random.seed(3)
    states = torch.get_rng_state(), random.getstate()
    traincheck.probe(model, X, loss=loss)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.out.bias.grad.tolist() == [1.0, 1.0, 1.0]
    assert not model.training
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_a_loss_that_is_none_is_an_error() -> None:
    with pytest.raises(UsageError, match="no scalar with a gradient"):
        traincheck.probe(Head(is_broken=False), X, loss=lambda out: out.argmax())
    with pytest.raises(UsageError, match="no scalar with a gradient"):
        traincheck.probe(Head(is_broken=False), X, loss=lambda out: out.square())


def test_a_model_that_cannot_be_copied_is_an_error() -> None:
    model = Head(is_broken=False)
    model.cache = X.clone().requires_grad_().square()  # deepcopy refuses tensors with a graph
    with pytest.raises(UsageError, match="cannot be copied"):
        traincheck.probe(model, X)


def test_a_process_that_is_recorded_is_refused() -> None:
    with traincheck.watch(), pytest.raises(UsageError, match="recorded already"):
        traincheck.probe(Head(is_broken=False), X)


@pytest.mark.parametrize("is_broken", [True, False])
def test_a_watch_makes_experiments_too(is_broken: bool) -> None:
    torch.manual_seed(0)
    model = Head(is_broken=is_broken)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with traincheck.watch(model, optimizer, probe=True, select=["TC00"]) as run:
        for _ in range(5):
            optimizer.zero_grad()
            loss(model(X)).backward()
            optimizer.step()
    assert [finding.code for finding in run.findings] == ["TC001"] * is_broken
    assert run.report().verdicts["TC001"].name == ("VIOLATED" if is_broken else "HELD")
