"""Stochastic depth and a routed mixture: in most steps some layers are not used at all."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Mixture(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, choice = self.router(x).softmax(dim=1).max(dim=1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mine = choice == index
            if mine.any():
                out[mine] = share[mine, None] * expert(x[mine])
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.mixture = Mixture(32, 6)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if self.training and torch.rand(()) < 0.5:
                continue
            x = x + F.relu(block(x))
        return self.head(x + self.mixture(x))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(20):
        picked = torch.randint(0, len(x), (24,))
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
