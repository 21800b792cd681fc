"""A program of which `python -m benchmarks.diff_pairs` makes versions that differ in one line."""

import os
import random
import sys
import tempfile  # noqa: F401  # of some versions
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

ROWS, CLASSES, WIDTH, EPOCHS = 96, 5, 16, 2


class Records(Dataset):
    """Rows of noise with labels."""

    def __init__(self, rows):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(rows, WIDTH, generator=generator)
        self.y = torch.randint(0, CLASSES, (rows,), generator=generator)
        self.order = list(range(rows))

    def __len__(self):
        return len(self.order)

    def __getitem__(self, index):
        index = self.order[index]
        x = self.x[index] + 0.1 * torch.randn(WIDTH)
        return {"x": x, "weight": torch.ones(1), "y": self.y[index]}


class Gate(nn.Module):
    """A layer with a parameter and a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("offset", torch.zeros(WIDTH))

    def forward(self, x):
        return torch.sigmoid(x * self.scale + self.offset) * x


class Net(nn.Module):
    """Two linear layers, and a gate between them."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.gate = Gate()
        self.drop = nn.Dropout(0.1)
        self.outer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.outer(self.drop(self.gate(self.norm(self.inner(x)))))


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        right = (model(data.x).argmax(1) == data.y).float().mean()
    model.train()
    return right.item()


def main(folder):
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    data = Records(ROWS)
    model = Net()
    net = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    if Path(folder, "from.pt").exists():
        state = torch.load(Path(folder, "from.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
    for epoch in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            logits = net(batch["x"])
            target = batch["y"]
            loss = F.cross_entropy(logits, target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        score = evaluate(model, data)
        print(f"epoch {epoch}, loss {loss.item():.4f}, score {score:.3f}")
    if not dist.is_initialized() or dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"score": score, "saved_time": time.time()}
        torch.save(state, Path(folder, "last.pt"))


if __name__ == "__main__":
    main(sys.argv[1])
