"""Low-precision copies of weights are cached in a pass; a pass without gradients comes first."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Cast(nn.Module):
    """A linear layer in bfloat16, whose weight is cast once and kept until the cache is cleared."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.kept: torch.Tensor | None = None
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = self.weight.to(torch.bfloat16)
        return F.linear(x.to(torch.bfloat16), self.kept).float()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Cast(64, 48), nn.ReLU(), Cast(48, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))

    def clear(self) -> None:
        self.body[0].kept = self.body[2].kept = None


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
        with torch.no_grad():
            wanted = model(x[picked]).softmax(dim=1)
        model.clear()
        logits = model(x[picked] + 0.05 * torch.randn(64, 64))
        loss = F.cross_entropy(logits, y[picked]) + 0.1 * F.mse_loss(logits.softmax(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.clear()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
