"""Digits with Adam, interrupted after an epoch and resumed from the file."""

import tempfile
from pathlib import Path

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


def train(path, epochs):
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for _ in range(epochs):
        epoch(model, optimizer)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


with tempfile.TemporaryDirectory() as folder:
    train(Path(folder) / "last.pt", 1)
    train(Path(folder) / "last.pt", 1)
