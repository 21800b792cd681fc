"""Digits; the best weights are kept and restored at the end."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(
    torch.tensor(images[:640], dtype=torch.float32) / 16, torch.tensor(labels[:640])
)
batches = DataLoader(data, batch_size=64, shuffle=True)


def build():
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def epoch(model, optimizer):
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


model = build()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
best, best_loss = None, float("inf")
for _ in range(3):
    epoch(model, optimizer)
    with torch.no_grad():
        x, y = data[:]
        held_out = F.cross_entropy(model(x), y).item()
    if held_out < best_loss:
        best_loss = held_out
        best = model.state_dict()
    for group in optimizer.param_groups:
        group["lr"] *= 2
model.load_state_dict(best)
epoch(model, torch.optim.SGD(model.parameters(), lr=1e-3))
