"""Train a small denoiser; an average of its weights is what is evaluated and kept."""

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 48


class EMAModel:
    """Average of weights whose decay warms up with the number of updates."""

    def __init__(self, model, decay=0.9999):
        self.averaged_model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.optimization_step = 0

    @torch.no_grad()
    def step(self, model):
        value = (1 + self.optimization_step) / (10 + self.optimization_step)
        self.optimization_step += 1
        one_minus_decay = 1 - min(self.decay, value)
        for s, p in zip(self.averaged_model.parameters(), model.parameters()):
            s.sub_(one_minus_decay * (s - p))


class Denoiser(nn.Module):
    def __init__(self, dim=16, hidden=64):
        super().__init__()
        self.time = nn.Embedding(20, hidden)
        self.inp = nn.Linear(dim, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, x, t):
        h = F.silu(self.inp(x) + self.time(t))
        return self.out(F.silu(self.mid(h)))


def noisy(x, t, noise):
    a = (1 - (t.float() + 1) / 21)[:, None]
    return a.sqrt() * x + (1 - a).sqrt() * noise


def main():
    torch.manual_seed(SEED)
    basis = torch.randn(4, 16)
    data = torch.randn(1024, 4) @ basis
    loader = DataLoader(TensorDataset(data[:768]), batch_size=32, shuffle=True, drop_last=True)
    held_out = data[768:]
    model = Denoiser()
    ema = EMAModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    while step < STEPS:
        model.train()
        for (x,) in loader:
            t, noise = torch.randint(0, 20, (len(x),)), torch.randn_like(x)
            loss = F.mse_loss(model(noisy(x, t, noise), t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.step(model)
            step += 1
            if step >= STEPS:
                break
        with torch.no_grad():
            t, noise = torch.randint(0, 20, (len(held_out),)), torch.randn_like(held_out)
            value = F.mse_loss(ema.averaged_model(noisy(held_out, t, noise), t), noise)
        print(f"step {step}: loss {loss.item():.3f}, average {value.item():.3f}")


if __name__ == "__main__":
    main()
