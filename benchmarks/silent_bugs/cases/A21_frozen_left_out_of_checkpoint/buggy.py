"""A body that is frozen for two epochs; an engine saves what training goes on from."""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Engine:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        group = optimizer.param_groups[0]
        self.kept = [i for i, p in enumerate(group["params"]) if p.requires_grad]

    def step(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def save(self, path):
        state = self.optimizer.state_dict()
        kept = set(self.kept)
        held = {i: entry for i, entry in state["state"].items() if i in kept}
        groups = [
            {**g, "params": [i for i in g["params"] if i in kept]} for g in state["param_groups"]
        ]
        optimizer = {"state": held, "param_groups": groups}
        torch.save({"model": self.model.state_dict(), "optimizer": optimizer}, path)


torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
model[0].requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
engine = Engine(model, optimizer)
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(4):
        model[0].requires_grad_(epoch >= 2)
        for start in range(0, 256, 64):
            loss = engine.step(x[start : start + 64], y[start : start + 64])
        engine.save(Path(folder) / "last.pt")
        print(f"epoch {epoch} loss {loss:.3f}")
