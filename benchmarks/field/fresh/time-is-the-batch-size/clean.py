import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1


class CosineSchedule:
    def __init__(self, shift=0.008):
        self.shift = shift

    def __call__(self, t):
        share = ((t + self.shift) / (1 + self.shift) * math.pi / 2).cos() ** 2
        share = share.clamp(1e-4, 1 - 1e-4)
        return (share / (1 - share)).log()


class Diffusion:
    def __init__(self, schedule):
        self.schedule = schedule

    def diffuse(self, x):
        t = torch.rand(len(x))
        log_snr = self.schedule(t)
        a, b = log_snr.sigmoid().sqrt().view(-1, 1), (-log_snr).sigmoid().sqrt().view(-1, 1)
        noise = torch.randn_like(x)
        return a * x + b * noise, noise, log_snr


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.level = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, width))
        self.first = nn.Linear(64, width)
        self.last = nn.Sequential(
            nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 64)
        )

    def forward(self, x, log_snr):
        return self.last(self.first(x) + self.level(log_snr.view(-1, 1) / 4))


model, diffusion = Denoiser(), Diffusion(CosineSchedule())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(50):
    x = data[torch.randint(0, len(data), (32,))]
    noised, noise, log_snr = diffusion.diffuse(x)
    loss = F.mse_loss(model(noised, log_snr), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
