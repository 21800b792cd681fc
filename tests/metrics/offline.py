"""The numbers of a training step in float64, taken without the monitor: clones, then numpy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.metrics.networks import loss_of


def tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Each floating point tensor in a value, with its name."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel():
            yield name, value
    elif isinstance(value, (tuple, list)):
        for index, one in enumerate(value):
            yield from tensors(one, f"{name}[{index}]")
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from tensors(one, f"{name}[{key}]")


class Offline:
    """Trains by hand, and keeps a float64 copy of everything: key -> step -> flat array."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, root: str) -> None:
        self.model, self.optimizer, self.root = model, optimizer, root
        self.found: dict[str, dict[int, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
        self.step = 0
        self._in_backward = False
        for name, module in model.named_modules():
            path = f"{root}.{name}" if name else root
            module.register_forward_pre_hook(self._before(path), with_kwargs=True)
            module.register_forward_hook(self._after(path))

    def keep(self, key: str, tensor: torch.Tensor) -> None:
        array = tensor.detach().clone().double().numpy().ravel()
        self.found[key][self.step].append(array)

    def _before(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._in_backward:
                return
            given = args[0] if len(args) == 1 and not kwargs else {}
            for name, tensor in tensors(given, path):
                self.keep(f"input/{name}", tensor)
            if len(args) != 1 or kwargs:
                for key, value in [*enumerate(args), *kwargs.items()]:
                    for name, tensor in tensors(value, f"{path}[{key}]"):
                        self.keep(f"input/{name}", tensor)

        return hook

    def _after(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            if self._in_backward:
                return
            for name, tensor in tensors(result, path):
                self.keep(f"activation/{name}", tensor)
                if tensor.grad_fn is not None:
                    tensor.register_hook(lambda g, n=name: self.keep(f"activation_gradient/{n}", g))

        return hook

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        named = self.model.named_parameters(remove_duplicate=False)
        return [(f"{self.root}.{name}", p) for name, p in named]

    def train(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = loss_of(self.model(batch))
        self._in_backward = True
        loss.backward()
        self._in_backward = False
        for name, p in self.parameters():
            if p.grad is not None:
                self.keep(f"gradient_before_clip/{name}", p.grad)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        before = {}
        for name, p in self.parameters():
            self.keep(f"parameter/{name}", p)
            before[name] = p.detach().clone()
            if p.grad is not None:
                self.keep(f"gradient/{name}", p.grad)
        self.optimizer.step()
        for name, p in self.parameters():
            if p.grad is not None:
                self.keep(f"update/{name}", p.detach() - before[name])
            for key, value in self.optimizer.state.get(p, {}).items():
                if value.dim():
                    self.keep(f"optimizer_state/{name}.{key}", value)
        self.step += 1

    def statistic(self, key: str, name: str, step: int) -> float | None:
        """A statistic in float64; None if it is not defined."""
        x = np.concatenate(self.found[key][step])
        if name == "ratio":
            weights = np.concatenate(self.found[key.replace("update/", "parameter/")][step])
            size = np.linalg.norm(weights)
            return float(np.linalg.norm(x) / size) if size else None
        if name in ("skewness", "kurtosis") and not x.var():
            return None
        return float(FORMULAS[name](x))


def _standard(x: np.ndarray, power: int) -> float:
    return np.mean((x - x.mean()) ** power) / np.mean((x - x.mean()) ** 2) ** (power / 2)


FORMULAS = {
    "mean": np.mean,
    "rms": lambda x: np.sqrt(np.mean(x * x)),
    "norm": np.linalg.norm,
    "std": np.std,
    "var": np.var,
    "min": np.min,
    "max": np.max,
    "absmax": lambda x: np.abs(x).max(),
    "absmean": lambda x: np.abs(x).mean(),
    "sum": np.sum,
    "zeros": lambda x: np.mean(x == 0),
    "nonfinite": lambda x: np.sum(~np.isfinite(x)),
    "count": len,
    "skewness": lambda x: _standard(x, 3),
    "kurtosis": lambda x: _standard(x, 4),
}
