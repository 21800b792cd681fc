"""A case, and the parts of all programs: small models, small data, one loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader

SABOTAGED, HEALTHY, HOST, STOPS = "sabotaged", "healthy", "host", "stops"
WRAPPERS, AUTOPATCH, DECORATOR = "wrappers", "autopatch", "decorator"
CLASSES, FEATURES = 4, 16
STEPS = 10


class Hands(Protocol):
    """The driver of a loop: the program itself, or a tool."""

    def begin(self, model: nn.Module, optimizer: Any) -> None: ...
    def forward(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any: ...
    def backward(self, loss: torch.Tensor) -> None: ...
    def step(self, optimizer: Any) -> None: ...
    def wrap(self, step: Callable[..., Any]) -> Callable[..., Any]: ...
    def end(self) -> None: ...


class Plain:
    """No tool: each call does what it says."""

    def begin(self, model: nn.Module, optimizer: Any) -> None:
        """Nothing to prepare."""

    def forward(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self, optimizer: Any) -> None:
        optimizer.step()

    def wrap(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return step

    def end(self) -> None:
        """Nothing to give back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One program.

    checks: ids of release 0.3.0 (``TA100``) and numbers of older checks (``21``) it belongs to.
    codes: our rules that may speak of it. kind: sabotaged (should be found), healthy (must not be),
    host (the program must go on unharmed), stops (PyTorch itself ends it). style: how the other
    tool is called, as its documentation says.
    """

    id: str
    about: str
    checks: tuple[str, ...]
    codes: tuple[str, ...]
    kind: str
    style: str
    needs_gpu: bool
    program: Callable[[Hands], None]


CASES: dict[str, Case] = {}


def case(
    id: str,  # the word for it
    about: str,
    *,
    checks: str,
    codes: str = "",
    kind: str = SABOTAGED,
    style: str = WRAPPERS,
    needs_gpu: bool = False,
) -> Callable[[Callable[[Hands], None]], Callable[[Hands], None]]:
    """Enter the program that follows into the list; ``checks`` and ``codes`` are words."""

    def enter(program: Callable[[Hands], None]) -> Callable[[Hands], None]:
        CASES[id] = Case(
            id=id,
            about=about,
            checks=tuple(checks.split()),
            codes=tuple(codes.split()),
            kind=kind,
            style=style,
            needs_gpu=needs_gpu,
            program=program,
        )
        return program

    return enter


def mlp(width: int = 64, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, width), act(), nn.Linear(width, CLASSES))


def convnet(bias: bool = False, kernel: int = 3, norm: bool = True) -> nn.Sequential:
    """A small model of 3 x 32 x 32 images."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, kernel, padding=kernel // 2, bias=bias)]
    layers += [nn.BatchNorm2d(16)] if norm else []
    layers += [nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, CLASSES)]
    return nn.Sequential(*layers)


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def labels(count: int) -> torch.Tensor:
    return torch.arange(count) % CLASSES


def row_tensors(count: int = 32 * STEPS) -> tuple[torch.Tensor, torch.Tensor]:
    """Features around one centre a class, and the classes."""
    y = labels(count)[torch.randperm(count)]
    return torch.randn(CLASSES, FEATURES)[y] + 0.5 * torch.randn(count, FEATURES), y


def rows(size: int = 32, steps: int = STEPS) -> DataLoader[Any]:
    return loader(*row_tensors(size * steps), size=size)


def image_tensors(count: int = 16 * STEPS, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images in 0..scale, and their classes: a class is a brightness of one channel."""
    y = labels(count)[torch.randperm(count)]
    x = torch.rand(count, 3, 32, 32)
    x[:, 0] *= 0.25 * (1 + y)[:, None, None]
    return x * scale, y


def images(scale: float = 1.0) -> DataLoader[Any]:
    return loader(*image_tensors(scale=scale), size=16)


def loader(*tensors: torch.Tensor, size: int, collate: Any = None) -> DataLoader[Any]:
    return DataLoader(list(zip(*tensors, strict=True)), batch_size=size, collate_fn=collate)


def first(batch: Any) -> Any:
    return batch[0]


def classify(out: torch.Tensor, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(out, batch[1])


def fit(
    hands: Hands,
    model: nn.Module,
    batches: Iterable[Any],
    *,
    optimizer: Any = None,
    loss: Callable[[Any, Any], torch.Tensor] = classify,
    inputs: Callable[[Any], Any] = first,
    others: Sequence[torch.optim.Optimizer] = (),
) -> None:
    """The usual loop. others: optimizers that step beside the first."""
    optimizer = sgd(model) if optimizer is None else optimizer
    hands.begin(model, optimizer)
    for batch in batches:
        for each in (optimizer, *others):
            each.zero_grad()
        given = inputs(batch)
        out = (
            hands.forward(model, **given)
            if isinstance(given, dict)
            else hands.forward(model, given)
        )
        hands.backward(loss(out, batch))
        hands.step(optimizer)
        for each in others:
            each.step()
    hands.end()
