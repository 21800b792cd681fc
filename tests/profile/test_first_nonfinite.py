"""The first NaN or infinity: step, phase, module, operation, line; healthy twins are quiet."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.profile.networks import floats, of_logits
from tests.profile.profiling import profile_of, profiling
from traincheck.collect.profile import recorder
from traincheck.profile.layers import Origin
from traincheck.profile.numbers import Profile


class Middle(nn.Module):
    """A function between two layers."""

    def __init__(
        self, function: Callable[[torch.Tensor], torch.Tensor], scale: float = 1.0
    ) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.function, self.scale = function, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.function(self.a(x) * self.scale))


class Masked(nn.Module):
    def __init__(self, *, hides_all: bool) -> None:
        super().__init__()
        self.a, self.hides_all = nn.Linear(8, 8), hides_all

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.ones(8, 8).triu(1).bool()
        hidden[3] |= self.hides_all
        scores = self.a(x).masked_fill(hidden, float("-inf"))
        return scores.softmax(-1) @ x  # line of softmax


class Embedded(nn.Module):
    def __init__(self, *, is_broken: bool) -> None:
        super().__init__()
        self.emb, self.h = nn.Embedding(8, 8), nn.Linear(8, 8)
        if is_broken:
            self.emb.weight.data[3] = math.nan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.h(self.emb(torch.arange(8)))  # line of the embedding


class OwnNorm(nn.Module):
    """A batch norm; that of torch refuses an epsilon of 0."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)) / (x.var(0) + self.eps).sqrt()  # line of the norm


class Norm(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.a, self.bn = nn.Linear(8, 8), OwnNorm(eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(self.bn(x * 0 + 1))


class Variational(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.enc, self.dec, self.scale = nn.Linear(8, 16), nn.Linear(8, 8), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, logvar = self.enc(x).abs().chunk(2, -1)
        std = (logvar * self.scale).exp()  # line of exp
        return self.dec(mean + std * torch.ones_like(std))


def logged(x: torch.Tensor) -> torch.Tensor:
    return x.abs().log()


def logged_of_zero(x: torch.Tensor) -> torch.Tensor:
    return (x * 0).abs().log()


def normed(x: torch.Tensor) -> torch.Tensor:
    return x.pow(2).sum(-1, keepdim=True).sqrt() * x


def normed_of_zero(x: torch.Tensor) -> torch.Tensor:
    return (x * 0).pow(2).sum(-1, keepdim=True).sqrt() + x


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x / x.std(0)


def scaled_by_one_sample(x: torch.Tensor) -> torch.Tensor:
    return x / x[:1].std(0)


def labels_loss(out: torch.Tensor, *, ignored: int) -> torch.Tensor:
    labels = torch.arange(8) % 8
    labels[:ignored] = -100
    return F.cross_entropy(out, labels)  # line of the loss


def run(
    folder: Path, model: nn.Module, loss_of: Callable[[Any], torch.Tensor] = of_logits,
    *, lr: float = 0.01, autocast: torch.dtype | None = None, steps: int = 2,
    given: torch.Tensor | None = None,
) -> Profile:  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    given = floats(8, 8) if given is None else given
    with profiling(folder, model, optimizer) as recorded:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
                out = model(given)
            loss_of(out).backward()
            optimizer.step()
    return profile_of(recorded)


def origin(profile: Profile) -> Origin:
    assert profile.origin is not None
    assert profile.origin.step == 0
    return profile.origin


def line_of(source: Any, text: str) -> str:
    """``file:line`` of the line of a function or class that contains this text."""
    lines, first = inspect.getsourcelines(source)
    number = next(n for n, line in enumerate(lines) if text in line)
    return f"{Path(__file__)}:{first + number}"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def told(found: Origin) -> tuple[str, str, str, str]:
    return found.phase, found.module, found.operation, found.value


def test_log_of_zero(tmp_path: Path) -> None:
    found = origin(run(tmp_path, Middle(logged_of_zero)))
    assert told(found) == ("forward", "Middle", "log", "-Inf")
    assert found.where == line_of(logged_of_zero, "log()")
    assert run(tmp_path / "twin", Middle(logged)).origin is None


def test_where_operations_are_not_seen_the_loss_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a program that compiles something: nothing is known of what the loss is made of."""
    monkeypatch.setattr(recorder, "_is_compiled", lambda: True)
    found = origin(run(tmp_path, Middle(logged_of_zero)))
    assert told(found) == ("loss", "", "backward", "NaN")
    assert found.where == line_of(run, ".backward()")
    assert run(tmp_path / "twin", Middle(logged)).origin is None


def test_sqrt_at_zero_is_finite_in_the_forward_pass(tmp_path: Path) -> None:
    profile = run(tmp_path, Middle(normed_of_zero))
    found = origin(profile)
    assert told(found) == ("backward", "Middle", "SqrtBackward0", "Inf")
    assert found.where == line_of(normed_of_zero, "sqrt()")
    rows = {row.path: row for row in profile.steps[0].layers()}
    assert rows["Middle.a"].gradient_out_bad
    assert not rows["Middle.b"].gradient_out_bad
    assert run(tmp_path / "twin", Middle(normed)).origin is None


def test_a_row_of_attention_that_is_all_masked(tmp_path: Path) -> None:
    found = origin(run(tmp_path, Masked(hides_all=True)))
    assert told(found) == ("forward", "Masked", "softmax", "NaN")
    assert found.where == line_of(Masked, "# line of softmax")
    assert run(tmp_path / "twin", Masked(hides_all=False)).origin is None


def test_float16_overflows_under_autocast(tmp_path: Path) -> None:
    model = Middle(lambda x: x, scale=3e4)
    found = origin(run(tmp_path, model, autocast=torch.float16, given=floats(8, 8) * 9))
    assert told(found)[:2] == ("forward", "Middle")
    assert found.value in ("Inf", "-Inf")
    assert found.where == line_of(Middle, "self.scale)")
    twin = Middle(lambda x: x)
    assert run(tmp_path / "twin", twin, autocast=torch.float16).origin is None


def test_a_mean_over_no_labels(tmp_path: Path) -> None:
    def loss_of(ignored: int) -> Callable[[Any], torch.Tensor]:
        return lambda out: labels_loss(out, ignored=ignored)

    found = origin(run(tmp_path, Middle(torch.relu), loss_of(8)))
    assert told(found) == ("forward", "", "cross_entropy", "NaN")
    assert found.where == line_of(labels_loss, "# line of the loss")
    assert run(tmp_path / "twin", Middle(torch.relu), loss_of(7)).origin is None


def test_an_embedding_row_that_is_nan_already(tmp_path: Path) -> None:
    found = origin(run(tmp_path, Embedded(is_broken=True)))
    assert told(found) == ("given", "Embedded.emb", "Embedded.emb.weight", "NaN")
    assert found.where == line_of(Embedded, "# line of the embedding")
    assert run(tmp_path / "twin", Embedded(is_broken=False)).origin is None


def test_an_infinite_learning_rate(tmp_path: Path) -> None:
    profile = run(tmp_path, Middle(torch.relu), lr=math.inf)
    found = origin(profile)
    assert (found.phase, found.module) == ("optimizer", "Middle.a")
    assert found.operation == "Middle.a.weight"
    assert found.where == line_of(run, "optimizer.step()")
    assert run(tmp_path / "twin", Middle(torch.relu)).origin is None


def test_a_constant_channel_in_a_norm_without_epsilon(tmp_path: Path) -> None:
    found = origin(run(tmp_path, Norm(0.0)))
    assert told(found) == ("forward", "Norm.bn", "div", "NaN")
    assert found.where == line_of(OwnNorm, "# line of the norm")
    assert run(tmp_path / "twin", Norm(1e-5)).origin is None


def test_exp_in_a_variational_network(tmp_path: Path) -> None:
    found = origin(run(tmp_path, Variational(1e3)))
    assert told(found) == ("forward", "Variational", "exp", "Inf")
    assert found.where == line_of(Variational, "# line of exp")
    assert run(tmp_path / "twin", Variational(1.0)).origin is None


@pytest.mark.filterwarnings("ignore:std..:UserWarning")
def test_the_deviation_of_one_sample(tmp_path: Path) -> None:
    found = origin(run(tmp_path, Middle(scaled_by_one_sample)))
    assert told(found) == ("forward", "Middle", "std", "NaN")
    assert found.where == line_of(scaled_by_one_sample, "std(0)")
    assert run(tmp_path / "twin", Middle(scaled)).origin is None


def test_a_nan_in_the_batch(tmp_path: Path) -> None:
    given = floats(8, 8)
    given[2, 3] = math.nan
    found = origin(run(tmp_path, Middle(torch.relu), given=given))
    assert (found.phase, found.operation, found.value) == ("given", "", "NaN")


def test_a_mask_that_is_added_is_no_fault(tmp_path: Path) -> None:
    mask = torch.full((8, 8), -math.inf).triu(1)
    profile = run(tmp_path, Middle(lambda x: (x + mask).softmax(-1)))
    assert profile.origin is None


def test_a_step_that_the_scaler_skips_is_no_fault(tmp_path: Path) -> None:
    model = Middle(torch.relu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    with profiling(tmp_path, model, optimizer) as recorded:
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(floats(8, 8)).pow(2).sum() * 1e3).backward()
            scaler.step(optimizer)
            scaler.update()
    first = profile_of(recorded).steps[0]
    assert first.origin is not None
    assert first.origin.is_skipped


def test_memory_that_is_not_set_yet_is_no_fault(tmp_path: Path) -> None:
    def filled(x: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(16, 8)
        whole.view(torch.int32).fill_(0x7FC00000)  # NaN, as memory may hold
        y = torch.empty_like(x, requires_grad=False)
        y.view(torch.int32).fill_(0x7FC00000)
        y[:4] = 1.0
        y[4:].copy_(torch.ones(4, 8))
        return x + y

    assert run(tmp_path, Middle(filled)).origin is None
