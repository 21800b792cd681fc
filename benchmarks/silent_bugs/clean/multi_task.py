"""Two tasks on one trunk, with an optimizer for the trunk and one for the heads."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.digit = nn.Linear(48, 10)
        self.weight = nn.Linear(48, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.trunk(x)
        return self.digit(hidden), self.weight(hidden).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    ink = x.sum(dim=1) / 20
    model = Net()
    slow = torch.optim.SGD(model.trunk.parameters(), lr=0.02, momentum=0.9)
    heads = [*model.digit.parameters(), *model.weight.parameters()]
    fast = torch.optim.Adam(heads, lr=1e-2)
    for step in range(20):
        picked = torch.randint(0, len(x), (64,))
        logits, guess = model(x[picked])
        loss = F.cross_entropy(logits, y[picked]) + 0.3 * F.mse_loss(guess, ink[picked])
        for optimizer in (slow, fast):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (slow, fast):
            optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
