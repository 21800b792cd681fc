"""FLOPs of kinds of layers, against formulas written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.profile.networks import floats, of_logits, tokens
from tests.profile.profiling import layer, needs_nodes, trained


class Function(nn.Module):
    """A function of the input and of a parameter."""

    def __init__(self, function: Callable[..., torch.Tensor], *shape: int) -> None:
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.w)


def attend(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q = x * w
    return F.scaled_dot_product_attention(q, q, q)


# The layer, its input, FLOPs forward, FLOPs backward; the input needs no gradient.
CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, int, int]] = {
    "linear": (lambda: nn.Linear(32, 48), floats(4, 32), 2 * 4 * 32 * 48, 2 * 4 * 32 * 48),
    "linear of three dims": (
        lambda: nn.Linear(32, 48, bias=False),
        floats(2, 5, 32),
        2 * 10 * 32 * 48,
        2 * 10 * 32 * 48,
    ),
    "conv1d": (
        lambda: nn.Conv1d(4, 6, 3),
        floats(2, 4, 10),
        2 * 2 * 6 * 8 * 4 * 3,
        2 * 2 * 6 * 8 * 4 * 3,
    ),
    "conv2d": (
        lambda: nn.Conv2d(3, 8, 3, stride=2, padding=1),
        floats(2, 3, 8, 8),
        2 * 2 * 8 * 4 * 4 * 3 * 9,
        2 * 2 * 8 * 4 * 4 * 3 * 9,
    ),
    "grouped conv2d": (
        lambda: nn.Conv2d(8, 8, 3, groups=8),
        floats(2, 8, 6, 6),
        2 * 2 * 8 * 4 * 4 * 9,
        2 * 2 * 8 * 4 * 4 * 9,
    ),
    "conv3d": (
        lambda: nn.Conv3d(2, 4, 2),
        floats(1, 2, 4, 4, 4),
        2 * 4 * 27 * 2 * 8,
        2 * 4 * 27 * 2 * 8,
    ),
    "transposed conv2d": (
        lambda: nn.ConvTranspose2d(4, 6, 2, stride=2),
        floats(2, 4, 5, 5),
        2 * 2 * 4 * 25 * 6 * 4,
        2 * 2 * 4 * 25 * 6 * 4,
    ),
    "lstm": (
        lambda: nn.LSTM(64, 64, batch_first=True),
        floats(8, 4, 64),
        2_097_152,
        # the weights of both products, and the state from step to step
        2_097_152 + 2_097_152 // 2,
    ),
    "gru": (
        lambda: nn.GRU(16, 24),
        floats(6, 3, 16),
        2 * 18 * 3 * 24 * (16 + 24),
        # of the first state no gradient is needed
        2 * 18 * 3 * 24 * (16 + 24) + 2 * 15 * 3 * 24 * 24,
    ),
    "rnn": (
        lambda: nn.RNN(16, 24),
        floats(6, 3, 16),
        2 * 18 * 24 * (16 + 24),
        2 * 18 * 24 * (16 + 24) + 2 * 15 * 24 * 24,
    ),
    "attention": (
        lambda: Function(attend, 64),
        floats(1, 12, 64, 64),
        12_582_912,
        12_582_912 * 5 // 2,
    ),
    "bilinear": (
        lambda: Function(lambda x, w: F.bilinear(x, x, w), 5, 3, 3),
        floats(2, 3),
        2 * 2 * 5 * 9 + 2 * 2 * 5 * 3,
        2 * 2 * 5 * 9 + 2 * 2 * 5 * 3,
    ),
    "bmm": (
        lambda: Function(torch.bmm, 2, 4, 5),
        floats(2, 3, 4),
        2 * 2 * 3 * 4 * 5,
        2 * 2 * 3 * 4 * 5,
    ),
    "matmul": (lambda: Function(torch.matmul, 4, 5), floats(3, 4), 2 * 3 * 4 * 5, 2 * 3 * 4 * 5),
    "einsum": (
        lambda: Function(lambda x, w: torch.einsum("bik,bkj->bij", x, w), 2, 4, 5),
        floats(2, 3, 4),
        2 * 2 * 3 * 4 * 5,
        2 * 2 * 3 * 4 * 5,
    ),
    "baddbmm": (
        lambda: Function(lambda x, w: torch.baddbmm(torch.ones(2, 3, 5), x, w), 2, 4, 5),
        floats(2, 3, 4),
        2 * 2 * 3 * 4 * 5,
        2 * 2 * 3 * 4 * 5,
    ),
    "matrix times vector": (
        lambda: Function(torch.mv, 4),
        floats(3, 4),
        2 * 3 * 4,
        2 * 3 * 4,
    ),
    "embedding": (lambda: nn.Embedding(64, 8), tokens(4, 6), 0, 0),
    "layer norm": (lambda: nn.LayerNorm(16), floats(4, 16), 0, 0),
}


@pytest.mark.parametrize("name", list(CASES))
@needs_nodes
def test_flops_are_those_of_the_formula(name: str, tmp_path: Path) -> None:
    make, given, forward, backward = CASES[name]

    def loss_of(model: Any) -> torch.Tensor:
        out = model(given)
        return of_logits(out[0] if isinstance(out, tuple) else out)

    profile, _ = trained(tmp_path, make, loss_of)
    (root,) = profile.steps[0].roots
    assert (root.sum("forward_flops"), root.sum("backward_flops")) == (forward, backward)
    assert not profile.steps[0].uncounted


COUNTED = ["linear", "conv2d", "transposed conv2d", "bmm", "matmul", "einsum"]


@pytest.mark.parametrize("name", COUNTED)
def test_torch_counts_the_same(name: str) -> None:
    make, given, forward, backward = CASES[name]
    counter = FlopCounterMode(display=False)
    model = make()
    with counter:
        of_logits(model(given)).backward()
    assert counter.get_total_flops() == forward + backward


@needs_nodes
def test_a_gradient_of_the_input_is_one_more_product(tmp_path: Path) -> None:
    def loss_of(model: Any) -> torch.Tensor:
        return of_logits(model(floats(4, 8)))

    profile, _ = trained(
        tmp_path, lambda: nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2)), loss_of
    )
    second = layer(profile, "Sequential.1")
    assert second.forward_flops == 2 * 4 * 16 * 2
    assert second.backward_flops == 2 * second.forward_flops


@needs_nodes
def test_operators_without_a_formula_are_listed(tmp_path: Path) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    def compute(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(x @ x.mT + torch.eye(4), Twice.apply(w))

    profile, _ = trained(
        tmp_path, lambda: Function(compute, 4, 2), lambda model: of_logits(model(floats(4, 4)))
    )
    assert profile.steps[0].uncounted == {"LinalgSolveExBackward0": 1, "TwiceBackward": 1}


@needs_nodes
def test_frozen_layers_below_need_no_gradient(tmp_path: Path) -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2))
        model[0].requires_grad_(False)
        return model

    profile, _ = trained(tmp_path, make, lambda model: of_logits(model(floats(4, 8))))
    assert layer(profile, "Sequential.1").backward_flops == 2 * 4 * 16 * 2
    frozen = layer(profile, "Sequential.0")
    assert frozen.forward_flops == 2 * 4 * 8 * 16
    assert frozen.backward_flops == 0
    assert not any(one.is_trained for one in frozen.parameters)
