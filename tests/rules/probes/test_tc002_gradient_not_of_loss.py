"""TC002: the gradient is not that of the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.checking import fires, net, quiet
from tests.rules.probing import Loss, classified, probed, results, trained
from traincheck.collect.probes.experiments.gradient import Slope
from traincheck.schema.findings import Verdict
from traincheck.schema.probes.event import ProbeEvent

BROKEN = probed(
    "gradient",
    numbers={"ratio": 0.938, "spread": 0.0001, "worst_ratio": 0.86},
    where="Net.block",
    place="/home/me/train.py:35",
    detail={"recomputed": "3", "without_state": "3"},
)


class Scale(torch.autograd.Function):
    """x times the square of w, whose derivative is 2 x w. ``factor``: what backward takes for 2."""

    factor = 2.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x * w * w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        return grad * w * w, (grad * x * w * Scale.factor).sum(0)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(Scale.apply(torch.tanh(self.body(x)), self.scale))


class Dropped(nn.Module):
    """Dropout in a segment that is recomputed."""

    def __init__(self, *, preserves: bool) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(8, 32), nn.Dropout(0.3), nn.Linear(32, 3)
        self.preserves = preserves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def segment(x: torch.Tensor) -> torch.Tensor:
            return self.drop(torch.tanh(self.body(x)))

        h = checkpoint(segment, x, use_reentrant=False, preserve_rng_state=self.preserves)
        return self.head(h)


def test_fires_on_results() -> None:
    finding = fires("TC002", BROKEN)
    assert (finding.first_step, finding.subject.module) == (1, "Net.block")


def test_fires_on_a_wrong_backward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scale, "factor", 1.0)
    events = trained(tmp_path, Scaled(), classified)
    finding = fires("TC002", events)
    assert finding.first_step == 2
    (first, *_) = results(events, "gradient")
    assert first.detail["functions"] == "Scale"
    assert abs(first.numbers["worst_ratio"] - 2) < 0.01


def test_quiet_on_a_right_backward(tmp_path: Path) -> None:
    assert quiet("TC002", trained(tmp_path, Scaled(), classified)) is Verdict.HELD


def test_fires_on_other_random_numbers_and_quiet_on_the_same(tmp_path: Path) -> None:
    broken = trained(tmp_path / "a", Dropped(preserves=False), classified)
    assert fires("TC002", broken).first_step == 2
    (first, *_) = results(broken, "gradient")
    assert first.detail["without_state"] == "1"
    assert (
        quiet("TC002", trained(tmp_path / "b", Dropped(preserves=True), classified)) is Verdict.HELD
    )


def temporal_difference(model: nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(16, 8)
    with torch.no_grad():
        target = 1.0 + 0.9 * model(torch.randn(16, 8)).max(1).values
    return nn.functional.mse_loss(model(x).max(1).values, target)


def straight_through(model: nn.Module, step: int) -> torch.Tensor:
    out = model(torch.randn(16, 8))
    hard = nn.functional.one_hot(out.argmax(1), 3).float()
    return (out + (hard - out).detach()).square().sum(1).mul(torch.rand(16)).mean()


def weighted_by_number(model: nn.Module, step: int) -> torch.Tensor:
    out = model(torch.randn(16, 8))
    return out.square().mean() * out.abs().mean().item()


@pytest.mark.parametrize("loss", [temporal_difference, straight_through, weighted_by_number])
def test_quiet_on_constants(loss: Loss, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    assert quiet("TC002", trained(tmp_path, model, loss)) is Verdict.HELD


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


def test_quiet_on_gradient_reversal(tmp_path: Path) -> None:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        return classified(lambda x: Reversed.apply(model(x)), step)  # type: ignore[arg-type]

    events = trained(tmp_path, nn.Sequential(nn.Linear(8, 3)), loss)
    assert quiet("TC002", events) is Verdict.NOT_TRIGGERED
    (first, *_) = results(events, "gradient")
    assert "ReversedBackward is around" in first.reason


def test_quiet_on_gradient_reversal_within_the_model(tmp_path: Path) -> None:
    class Adversary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(Reversed.apply(torch.tanh(self.body(x))))

    events = trained(tmp_path, Adversary(), classified)
    assert quiet("TC002", events) is Verdict.HELD
    (first, *_) = results(events, "gradient")
    assert first.detail["by_design"].endswith("Reversed returns its input")
    assert first.numbers["parameters"] == 4


class Stored(torch.autograd.Function):
    """Score distillation: a number to show, and a gradient that was computed elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(stored)
        return x.square().mean()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return grad * ctx.saved_tensors[0], None


class Distilled(Dropped):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = super().forward(x)
        return h.square().mean() + Stored.apply(h, torch.randn(h.shape))


def own_loss(model: nn.Module, step: int) -> torch.Tensor:
    out: torch.Tensor = model(torch.randn(16, 8))
    return out


def test_the_rest_is_compared_beside_a_stored_gradient(tmp_path: Path) -> None:
    healthy = trained(tmp_path / "a", Distilled(preserves=True), own_loss)
    assert quiet("TC002", healthy) is Verdict.HELD
    (first, *_) = results(healthy, "gradient")
    assert "Stored returns a gradient that was given to it" in first.detail["by_design"]
    broken = trained(tmp_path / "b", Distilled(preserves=False), own_loss)
    fires("TC002", broken)
    (first, *_) = results(broken, "gradient")
    assert (first.detail["without_state"], "functions" in first.detail) == ("1", False)


def group_relative(model: nn.Module, step: int) -> torch.Tensor:
    """The first update of a policy: terms of size 1 whose mean is 0 but for rounding."""
    x, actions = torch.randn(64, 8), torch.randint(0, 3, (64,))
    with torch.no_grad():
        before = model(x).log_softmax(1).gather(1, actions[:, None])[:, 0]
    rewards = torch.rand(8, 8)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)).view(-1)
    now = model(x).log_softmax(1).gather(1, actions[:, None])[:, 0]
    ratio = (now - before).exp()
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()


@pytest.mark.parametrize("width", [16, 64, 256])
def test_quiet_where_the_terms_of_a_loss_cancel(width: int, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 3))
    events = trained(tmp_path, model, group_relative)
    assert quiet("TC002", events) is Verdict.HELD
    (first, *_) = results(events, "gradient")
    assert abs(first.numbers["loss"]) < 1e-6
    assert abs(first.numbers["ratio"] - 1) < 1e-3, "it is observable all the same"


def test_fires_where_the_terms_of_a_loss_cancel(tmp_path: Path) -> None:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        ratio = model(torch.randn(64, 8)).log_softmax(1)[:, 0]
        advantages = torch.randn(64)
        return -((ratio - ratio.detach()).exp() * (advantages - advantages.mean())).mean()

    events = trained(tmp_path, Dropped(preserves=False), loss)
    fires("TC002", events)
    (first, *_) = results(events, "gradient")
    assert abs(first.numbers["loss"]) < 1e-6


class Hooked(nn.Module):
    """A hook replaces the gradient, as implicit differentiation does, or returns it as it is."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.body, self.head, self.factor = nn.Linear(8, 8), nn.Linear(8, 3), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.body(x))
        if self.training:
            h.register_hook(lambda grad: grad * self.factor)
        return self.head(h)


def test_not_observable_where_a_hook_replaces_a_gradient(tmp_path: Path) -> None:
    events = trained(tmp_path / "a", Hooked(0.5), classified)
    assert quiet("TC002", events) is Verdict.NOT_TRIGGERED
    (first, *_) = results(events, "gradient")
    assert "hook" in first.reason
    same = trained(tmp_path / "b", Hooked(1.0), classified)
    assert quiet("TC002", same) is Verdict.HELD


def test_quiet_where_the_loss_is_rough() -> None:
    assert not Slope(ratio=2.0, spread=0.11, kink=0.3, noise=1e-4).is_wrong
    assert Slope(ratio=0.9, spread=1e-3, kink=1e-3, noise=1e-4).is_wrong


def test_quiet_where_one_step_only_is_wrong() -> None:
    once = probed("gradient", times=1, numbers={"ratio": 0.9})
    assert fires("TC002", once).first_step == 1, "nothing speaks against it"
    both = net().steps(2).add(ProbeEvent, name="gradient", status="moved", numbers={"ratio": 0.9})
    both.steps(2).add(ProbeEvent, name="gradient", numbers={"ratio": 1.0})
    assert quiet("TC002", both.steps(1).build()) is Verdict.HELD
