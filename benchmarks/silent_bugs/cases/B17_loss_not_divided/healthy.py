"""Gradient accumulation over four micro-batches."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

WINDOW = 4


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        optimizer.zero_grad()
        for _ in range(WINDOW):
            picked = torch.randint(0, len(x), (16,))
            loss = F.cross_entropy(model(x[picked]), y[picked])
            loss = loss / WINDOW
            loss.backward()
        optimizer.step()
        if step % 4 == 0:
            print(step, round(loss.item(), 3))


main()
