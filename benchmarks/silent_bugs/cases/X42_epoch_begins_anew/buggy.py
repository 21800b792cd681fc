"""Digits with a learning rate that is set by epoch, interrupted after some and resumed."""

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


def train(path, epochs):
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(first, epochs):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.7**epoch
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "epoch": epoch}, path)


with tempfile.TemporaryDirectory() as folder:
    train(Path(folder) / "last.pt", 3)
    train(Path(folder) / "last.pt", 5)
