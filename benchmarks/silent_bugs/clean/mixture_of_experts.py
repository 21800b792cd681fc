"""Rows go to one of six experts: in a small batch some get none, and a loss balances them."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EXPERTS = 6


class Mixture(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.gate = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
                for _ in range(EXPERTS)
            ]
        )
        self.last = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.first(x)
        chances = self.gate(hidden).softmax(-1)
        weight, chosen = chances.max(-1)
        mixed = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                mixed = mixed.index_add(0, rows, weight[rows, None] * expert(hidden[rows]))
        shares = torch.bincount(chosen, minlength=EXPERTS) / len(x)
        return self.last(hidden + mixed), EXPERTS * (shares * chances.mean(0)).sum()


torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images[:1024], labels[:1024]), batch_size=16, shuffle=True)
model = Mixture()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in loader:
    results, balance = model(x)
    loss = F.cross_entropy(results, y) + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(round(loss.item(), 3))
