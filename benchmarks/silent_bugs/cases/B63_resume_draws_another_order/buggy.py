"""Digits, stopped in the middle of an epoch and resumed at the batch that comes next."""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, STOP = 3, (1, 6)  # stopped in epoch 1, before batch 6

torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(
    torch.tensor(images[:640], dtype=torch.float32) / 16, torch.tensor(labels[:640])
)


def train(path, seed, stop=None):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = torch.Generator().manual_seed(seed)
    batches = DataLoader(data, batch_size=64, shuffle=True, generator=order)
    first, skip = 0, 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, skip = state["epoch"], state["batch"]
    for epoch in range(first, EPOCHS):
        began = order.get_state()
        for i, (x, y) in enumerate(batches):
            if i < skip:
                continue
            if (epoch, i) == stop:
                state = {"epoch": epoch, "batch": i, "order": began}
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**parts, **state}, path)
                return
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        skip = 0
        print(f"epoch {epoch} loss {loss.item():.3f}")


with tempfile.TemporaryDirectory() as folder:
    train(Path(folder) / "last.pt", seed=0, stop=STOP)
    train(Path(folder) / "last.pt", seed=1)
