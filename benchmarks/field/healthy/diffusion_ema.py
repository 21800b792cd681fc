"""A diffusion model with an averaged copy that samples."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

STEPS = 50
beta = torch.linspace(1e-3, 0.1, STEPS)
alpha = (1 - beta).cumprod(0)


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.time = nn.Embedding(STEPS, 32)
        self.net = nn.Sequential(
            nn.Linear(96, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 64),
        )

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


model = Denoiser()
average = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(60):
    x = images[torch.randint(0, len(images), (64,))] * 2 - 1
    t = torch.randint(0, STEPS, (64,))
    noise = torch.randn_like(x)
    level = alpha[t][:, None]
    loss = F.mse_loss(model(level.sqrt() * x + (1 - level).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    decay = min(0.99, (1 + step) / (10 + step))
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 1 - decay)
    if step % 20 == 19:
        print(f"step {step}: loss {loss.item():.4f}")
with torch.no_grad():
    x = torch.randn(4, 64)
    for t in reversed(range(STEPS)):
        guess = average(x, torch.full((4,), t))
        x = (x - beta[t] / (1 - alpha[t]).sqrt() * guess) / (1 - beta[t]).sqrt()
        x = x + beta[t].sqrt() * torch.randn_like(x) * (t > 0)
print(f"samples between {x.min():.2f} and {x.max():.2f}")
