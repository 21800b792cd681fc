"""Small networks of many kinds, and one training step of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n1, self.a, self.n2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.m = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.a(self.n1(x))
        return x + self.m(self.n2(x))


class GPT(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, *, again: str = "") -> None:
        super().__init__()
        self.again = again
        self.e = nn.Embedding(128, width)
        self.b = nn.ModuleList([Block(width, 4) for _ in range(layers)])
        self.n, self.h = nn.LayerNorm(width), nn.Linear(width, 128, bias=False)
        self.h.weight = self.e.weight

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.e(idx)
        for block in self.b:
            if self.again:
                x = checkpoint(block, x, use_reentrant=self.again == "reentrant")
            else:
                x = block(x)
        return self.h(self.n(x))


class Residual(nn.Module):
    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(made), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(made)
        self.down = (
            nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made))
            if stride > 1 or given != made
            else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        same = x if self.down is None else self.down(x)
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += same
        return self.relu(y)


class ResNet18(nn.Module):
    """Its layers and their order are those of the published network."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        sizes = [(width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)]
        stages, given = [], width
        for made, stride in sizes:
            stages.append(nn.Sequential(Residual(given, made, stride), Residual(made, made, 1)))
            given = made
        self.stages = nn.Sequential(*stages)
        self.average, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(given, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stages(self.pool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.average(x), 1))


class Recurrent(nn.Module):
    """An LSTM with a tuple and a dict among its results."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.r = nn.Embedding(64, 32), nn.LSTM(32, 48, num_layers=2, batch_first=True)
        self.h = nn.Linear(48, 64)

    def forward(self, *, ids: torch.Tensor) -> dict[str, Any]:
        states, (last, _) = self.r(self.e(ids))
        return {"logits": self.h(states), "last": last}


class Experts(nn.Module):
    """A mixture: each token goes to one of four experts."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inp, self.gate = nn.Linear(16, width), nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width)) for _ in range(4)
        )
        self.out = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(-1)
            if rows.numel():
                y = y.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return self.out(y)


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.d1 = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(inplace=True))
        self.d2 = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(inplace=True))
        self.mid = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.GroupNorm(4, 16))
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.last = nn.Conv2d(2 * width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.d1(x)
        return self.last(torch.cat([a, self.up(self.mid(self.d2(a)))], 1))


class Reused(nn.Module):
    """One layer that is called a hundred times."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = self.same(x)
        return x


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        y += 1
        return y.flatten(1)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 64, shape, generator=torch.Generator().manual_seed(1))


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def of_logits(out: torch.Tensor) -> torch.Tensor:
    return out.float().pow(2).mean()


# A network, and its loss on one batch.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], torch.Tensor]]] = {
    "resnet": (lambda: ResNet18(16), lambda m: of_logits(m(floats(4, 3, 64, 64)))),
    "gpt": (GPT, lambda m: of_logits(m(tokens(4, 32)))),
    "lstm": (Recurrent, lambda m: of_logits(m(ids=tokens(4, 12))["logits"])),
    "moe": (Experts, lambda m: of_logits(m(floats(64, 16)))),
    "unet": (UNet, lambda m: of_logits(m(floats(2, 1, 32, 32)))),
    "checkpointed": (lambda: GPT(again="yes"), lambda m: of_logits(m(tokens(4, 32)))),
    "reentrant": (lambda: GPT(again="reentrant"), lambda m: of_logits(m(tokens(4, 32)))),
    "reused": (Reused, lambda m: of_logits(m(floats(16, 32)))),
    "inplace": (InPlace, lambda m: of_logits(m(floats(4, 3, 16, 16)))),
    "bf16": (lambda: GPT().bfloat16(), lambda m: of_logits(m(tokens(4, 32)))),
    "gru": (
        lambda: nn.GRU(16, 24, bidirectional=True),
        lambda m: of_logits(m(floats(6, 3, 16))[0]),
    ),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
        lambda m: of_logits(m(floats(4, 8, 32))),
    ),
}
