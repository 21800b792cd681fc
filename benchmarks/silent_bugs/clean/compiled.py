"""A model compiled with the eager backend; evaluated through the original."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.Adam(compiled.parameters(), lr=1e-2)
    for step in range(16):
        picked = torch.randint(0, 1500, (64,))
        loss = F.cross_entropy(compiled(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            with torch.no_grad():
                right = (model(x[1500:]).argmax(dim=1) == y[1500:]).float().mean()
            print(step, round(loss.item(), 3), round(right.item(), 2))


main()
