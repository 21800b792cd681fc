"""Two adapters on a frozen layer: one is loaded for inference beside the one that is trained."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 10).requires_grad_(False)
        self.adapters = nn.ModuleDict()
        self.active: list[str] = []

    def add(self, name: str, *, trainable: bool) -> None:
        self.adapters[name] = nn.Sequential(nn.Linear(64, 4, bias=False), nn.Linear(4, 10))
        self.active.append(name)
        self.adapters[self.active[0]].requires_grad_(trainable)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + sum(self.adapters[name](x) for name in self.active)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = Adapted()
    model.add("first", trainable=True)
    model.add("second", trainable=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(16):
        picked = torch.randint(0, len(x), (64,))
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
