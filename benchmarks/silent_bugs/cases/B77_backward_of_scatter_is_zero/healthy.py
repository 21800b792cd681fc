"""A layer written as an autograd function: part of its input is replaced, the rest passes."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Scatter(torch.autograd.Function):
    """Replaces the first columns of an input, as a compiler's own kernel for slice_scatter."""

    @staticmethod
    def forward(ctx, base: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        ctx.width = part.shape[1]
        return torch.cat([part, base[:, ctx.width :]], dim=1)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        passed = grad.clone()
        passed[:, : ctx.width] = 0
        return passed, grad[:, : ctx.width]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 48)
        self.part = nn.Linear(64, 16)
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(Scatter.apply(self.base(x), self.part(x))))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = Net()
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
