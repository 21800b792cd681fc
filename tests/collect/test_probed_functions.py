"""Functions of a user whose backward is another one than the derivative: meant, or wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from traincheck.collect.probes.functions import Purpose, purpose_of

Forward = Callable[..., torch.Tensor]
Backward = Callable[..., Any]


def judged(forward: Forward, backward: Backward, *args: Any) -> Purpose:
    """forward: of the arguments. backward: of the incoming gradient and the arguments."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> torch.Tensor:
            ctx.given = given
            return forward(*given)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
            found = backward(grad, *ctx.given)
            found = found if isinstance(found, tuple) else (found,)
            return (*found, *[None] * (len(ctx.given) - len(found)))

    torch.manual_seed(0)
    return purpose_of(Custom.apply, args)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).requires_grad_()


STORED = torch.rand(6, 4) + 0.5
X, W = leaf(6, 4), leaf(4, 5)

BY_DESIGN: dict[str, tuple[Any, ...]] = {
    "reversal": (lambda x: x.view_as(x), lambda g, x: -g, X),
    "rounds": (lambda x: (x * 20).round() / 20, lambda g, x: g, X),
    "quantizes with as many values as elements": (
        lambda x: (x * 1000).floor() / 1000 + torch.arange(24.0).view(6, 4),
        lambda g, x: g,
        X,
    ),
    "spikes": (lambda x: (x > 0).to(x.dtype), lambda g, x: g / (1 + x.abs()) ** 2, X),
    "sign, with a window": (lambda x: x.sign(), lambda g, x: g * (x.abs() < 1), X),
    "clamps, and passes on": (lambda x: x.clamp(-0.5, 0.5), lambda g, x: g, X),
    "bounds below, and pulls": (
        lambda x: x.clamp_min(0.2),
        lambda g, x: g * ((x >= 0.2) | (g < 0)),
        X,
    ),
    "score distillation of one": (lambda x, c: x.new_ones(1), lambda g, x, c: g * c, X, STORED),
    "score distillation, shown as a sum": (lambda x, c: x.sum(), lambda g, x, c: g * c, X, STORED),
    "score distillation, shown as a square": (
        lambda x, c: x.square().mean(),
        lambda g, x, c: g * c,
        X,
        STORED,
    ),
    "tanh, passed on": (lambda x: x.tanh(), lambda g, x: g, X),
}


@pytest.mark.parametrize("name", BY_DESIGN)
def test_a_gradient_that_is_meant(name: str) -> None:
    found = judged(*BY_DESIGN[name])
    assert found.by_design
    assert not found.is_wrong


RIGHT: dict[str, tuple[Any, ...]] = {
    "square": (lambda x: x * x, lambda g, x: 2 * g * x, X),
    "product": (lambda x, w: x @ w, lambda g, x, w: (g @ w.T, x.T @ g), X, W),
    "weighted by a constant": (lambda x, c: (x * c).sum(), lambda g, x, c: g * c, X, STORED),
    "mean": (lambda x: x.mean(), lambda g, x: g.expand(x.shape) / x.numel(), X),
    "relu": (lambda x: x.relu(), lambda g, x: g * (x > 0), X),
    "identity": (lambda x: x * 1, lambda g, x: g, X),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_gradient(name: str) -> None:
    assert judged(*RIGHT[name]) == Purpose()


WRONG: dict[str, tuple[Any, ...]] = {
    "square without 2": (lambda x: x * x, lambda g, x: g * x, X),
    "mean without the count": (lambda x: x.mean(), lambda g, x: g.expand(x.shape), X),
    "product, not transposed": (
        lambda x, w: x @ w,
        lambda g, x, w: (g @ w, x.T @ g),
        leaf(6, 4),
        leaf(4, 4),
    ),
    "incoming gradient left out": (
        lambda x: x.square().sum(1),
        lambda g, x: 2 * x,
        X,
    ),
    "tanh of the input": (lambda x: x.tanh(), lambda g, x: g * (1 - x * x), X),
    "constant squared": (lambda x, c: x * c * c, lambda g, x, c: g * c, X, STORED),
    "sum over the wrong dim": (
        lambda x, w: x * w,
        lambda g, x, w: (g * w, (g * x).sum(1)),
        leaf(4, 4),
        leaf(4),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_gradient(name: str) -> None:
    found = judged(*WRONG[name])
    assert (found.by_design, found.is_wrong) == ("", True)


def test_a_mask_that_is_drawn_is_the_same_in_each_call() -> None:
    def dropped(x: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
        kept[:] = [(torch.rand(x.shape) < 0.5).to(x.dtype)]
        return x * kept[0] * 2

    assert judged(dropped, lambda g, x, kept: g * kept[0] * 2, X, []) == Purpose()
    assert judged(dropped, lambda g, x, kept: g * kept[0], X, []).is_wrong


def test_a_function_that_takes_one_precision_only() -> None:
    def only(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32:
            raise TypeError("the kernel takes float32")
        return x * x

    assert judged(only, lambda g, x: 2 * g * x, X) == Purpose()
    assert judged(only, lambda g, x: g * x, X).is_wrong


def test_a_function_that_counts_its_calls_is_not_compared() -> None:
    calls: list[None] = []

    def grown(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return x * len(calls)

    found = judged(grown, lambda g, x: g * len(calls), X)
    assert found == Purpose("returns something else when it is called again")
