"""An exponential moving average of the weights is kept by hand and evaluated."""

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Average:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.count = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.count += 1
        decay = min(self.decay, self.count / (self.count + 9))
        for mine, theirs in zip(self.model.parameters(), model.parameters()):
            mine.lerp_(theirs, 1 - decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers()):
            mine.copy_(theirs)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average = Average(model, 0.98)
    for step in range(24):
        model.train()
        picked = torch.randint(0, 1500, (64,))
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        if step % 8 == 7:
            with torch.no_grad():
                right = (average.model(x[1500:]).argmax(dim=1) == y[1500:]).float().mean()
            print(step, round(loss.item(), 3), round(right.item(), 2))


main()
