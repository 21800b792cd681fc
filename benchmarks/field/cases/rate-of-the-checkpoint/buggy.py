"""Two stages of training: the second begins from the checkpoint of the first with a smaller rate."""

import io
import sys

import torch
from torch import nn
from torch.nn import functional as F

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40


def build():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5))


def train(model, optimizer, centers, generator, first, last):
    model.train()
    for step in range(first, last):
        y = torch.randint(0, 5, (32,), generator=generator)
        x = centers[y] + 0.6 * torch.randn(32, 12, generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


def stage(centers, generator, lr, first, last, file=None):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    if file is not None:
        checkpoint = torch.load(file, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer, centers, generator, first, last)
    out = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, out)
    out.seek(0)
    return out


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    centers = torch.randn(5, 12)
    generator = torch.Generator().manual_seed(SEED + 1)
    file = stage(centers, generator, 1e-2, 0, STEPS // 2)
    stage(centers, generator, 5e-4, STEPS // 2, STEPS, file)


if __name__ == "__main__":
    main()
