"""Trains, is resumed from a checkpoint, and trains on; an own scheduler warms up and decays."""

import io
import sys

import torch
from torch import nn
from torch.nn import functional as F

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40


class WarmupPolynomial:
    """Linear warm-up, polynomial decay; writes the rate before each update."""

    def __init__(self, param_groups, peak, warmup, total):
        self.param_groups = param_groups
        self.peak, self.warmup, self.total = peak, warmup, total

    def update(self, step):
        if step < self.warmup:
            lr = self.peak * (step + 1) / self.warmup
        else:
            lr = self.peak * max(0.0, 1 - (step - self.warmup) / (self.total - self.warmup)) ** 0.5
        for group in self.param_groups:
            group["lr"] = lr
        return lr


def build():
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4))


def train(model, optimizer, scheduler, data, first, last):
    model.train()
    for step in range(first, last):
        x, y = data(step)
        scheduler.update(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            rate = optimizer.param_groups[0]["lr"]
            print(f"step {step} loss {loss.item():.4f} lr {rate:.5f}")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    centers = torch.randn(4, 12)

    def data(step):
        generator = torch.Generator().manual_seed(1000 * SEED + step)
        y = torch.randint(0, 4, (32,), generator=generator)
        return centers[y] + 0.6 * torch.randn(32, 12, generator=generator), y

    half = STEPS // 4
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    scheduler = WarmupPolynomial(optimizer.param_groups, 1e-2, 20, 2 * STEPS)
    train(model, optimizer, scheduler, data, 0, half)
    file = io.BytesIO()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": half}, file
    )

    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    scheduler = WarmupPolynomial(optimizer.param_groups, 1e-2, 20, 2 * STEPS)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer, scheduler, data, checkpoint["step"], STEPS)


if __name__ == "__main__":
    main()
