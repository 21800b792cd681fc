"""Barlow twins: the cross-correlation of two views should be the identity."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


def view(x):
    return x * (torch.rand_like(x) > 0.2) + 0.05 * torch.randn_like(x)


model = nn.Sequential(
    nn.Linear(64, 96),
    nn.BatchNorm1d(96),
    nn.ReLU(),
    nn.Linear(96, 32),
    nn.BatchNorm1d(32, affine=False),
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(2):
    for index in torch.randperm(1792).split(128):
        one, two = model(view(images[index])), model(view(images[index]))
        c = one.T @ two / len(index)
        on = (c.diagonal() - 1).pow(2).sum()
        off = c.pow(2).sum() - c.diagonal().pow(2).sum()
        loss = on + 0.01 * off
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
