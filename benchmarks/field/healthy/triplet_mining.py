"""Metric learning with the hardest triplets of a balanced batch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


def batch():
    rows = [torch.where(labels == c)[0][torch.randperm(100)[:8]] for c in range(10)]
    return torch.cat(rows)


def triplet(z, y, margin=0.3):
    far = (z[:, None] - z[None]).pow(2).sum(-1).clamp(min=1e-12).sqrt()
    same = y[:, None] == y[None]
    hardest_same = (far * same).amax(1)
    hardest_other = far.masked_fill(same, float("inf")).amin(1)
    return F.relu(hardest_same - hardest_other + margin).mean()


model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(40):
    index = batch()
    loss = triplet(F.normalize(model(images[index]), dim=1), labels[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
