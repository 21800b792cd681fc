"""Fine-tunes a bfloat16 model from a weights-only checkpoint; the optimizer keeps float32 masters."""

import io
import sys

import torch
from torch import nn
from torch.nn import functional as F

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40


class MasterAdam:
    """Adam on float32 copies of bfloat16 parameters."""

    def __init__(self, params, lr):
        self.params = [p for p in params if p.requires_grad]
        self.masters = [p.detach().clone().float().requires_grad_(True) for p in self.params]
        self.inner = torch.optim.Adam(self.masters, lr=lr)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def reload_from_model(self):
        for master, p in zip(self.masters, self.params):
            master.copy_(p)

    def step(self):
        for master, p in zip(self.masters, self.params):
            master.grad = p.grad.float()
        self.inner.step()
        with torch.no_grad():
            for master, p in zip(self.masters, self.params):
                p.copy_(master)


def build():
    return nn.Sequential(
        nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5)
    )


def batch(centers, generator):
    y = torch.randint(0, 5, (32,), generator=generator)
    return centers[y] + 0.5 * torch.randn(32, 12, generator=generator), y


def pretrain(centers, generator):
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(25):
        x, y = batch(centers, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict()}, buffer)
    buffer.seek(0)
    return buffer


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED + 1)
    centers = torch.randn(5, 12)
    file = pretrain(centers, generator)

    model = build().to(torch.bfloat16)
    optimizer = MasterAdam(model.parameters(), lr=1e-3)
    checkpoint = torch.load(file, weights_only=True)
    model.load_state_dict(checkpoint["model"])

    model.train()
    for step in range(STEPS):
        x, y = batch(centers, generator)
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == 1:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"last loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
