"""Twelve kinds of network, each with its batches: what a monitor must measure rightly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Plain(nn.Sequential):
    def __init__(self, *more: nn.Module) -> None:
        super().__init__(nn.Linear(6, 8), *more, nn.ReLU(inplace=True), nn.Linear(8, 2))


class Pair(nn.Module):
    """Returns a tuple with a tuple in it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.a(x), (self.b(x), None)


class Tuples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.head = Pair(), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> Any:
        a, (b, _) = self.pair(x)
        return self.head(torch.cat([a, b], 1))


class Dicts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = torch.tanh(self.body(x))
        return {"logits": self.head(hidden), "hidden": hidden}


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 2)

    def forward(
        self, x: torch.Tensor, *, scale: torch.Tensor, shift: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.fc(x) * scale + (0 if shift is None else shift)


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x, scale=torch.full((1,), 3.0), shift=x.new_ones(2))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(torch.relu(self.first(x)))


class Frozen(Plain):
    def __init__(self) -> None:
        super().__init__()
        self[0].requires_grad_(False)


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 4).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 4, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> Any:
        return self.base(x) + self.up(self.down(x))


class Experts(nn.Module):
    """An expert may get no row, one of them never gets any."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 2) for _ in range(4))

    def forward(self, x: torch.Tensor) -> Any:
        weight, chosen = self.gate(x).softmax(1).max(1)
        out = x.new_zeros(len(x), 2)
        for index in range(3):
            rows = chosen == index
            out = out.index_add(0, rows.nonzero()[:, 0], self.experts[index](x[rows]))
        return out * weight[:, None]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.lstm(x[:, None].expand(-1, 3, -1))[0][:, -1])


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.stem, self.body = nn.Linear(6, 6), Plain(nn.Dropout(0.3))

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.body, self.stem(x), use_reentrant=self.reentrant)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: Plain(nn.BatchNorm1d(8)),
    "dropout": lambda: Plain(nn.Dropout(0.5)),
    "tuple": Tuples,
    "dict": Dicts,
    "keywords": Keywords,
    "tied": Tied,
    "frozen": Frozen,
    "lora": Lora,
    "experts": Experts,
    "recurrent": Recurrent,
    "checkpointed": Checkpointed,
    "checkpointed, reentrant": lambda: Checkpointed(reentrant=True),
    "bf16": lambda: Plain(nn.LayerNorm(8)).bfloat16(),
}


def made(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network of a kind and its optimizer, always with the same weights."""
    torch.manual_seed(len(kind))
    model = NETWORKS[kind]()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def batches(kind: str, count: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    return [torch.randn(16, 6, generator=generator).to(dtype) for _ in range(count)]


def loss_of(out: Any) -> torch.Tensor:
    out = out["logits"] if isinstance(out, dict) else out
    return F.mse_loss(out.float(), torch.ones_like(out).float())
