"""Discrete latents by the Gumbel softmax whose temperature falls."""

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Discrete(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8 * 6))
        self.decode = nn.Sequential(nn.Linear(8 * 6, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x, temperature):
        logits = self.encode(x).view(-1, 8, 6)
        code = F.gumbel_softmax(logits, tau=temperature, hard=True)
        chance = logits.softmax(-1)
        kl = (chance * (chance.clamp(min=1e-9) * 6).log()).sum((1, 2)).mean()
        return self.decode(code.flatten(1)), kl


model = Discrete()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
step = 0
for epoch in range(2):
    for index in torch.randperm(len(images)).split(64):
        x = images[index]
        out, kl = model(x, max(0.5, math.exp(-0.02 * step)))
        loss = F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(1).mean() + 0.1 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    print(f"epoch {epoch}: loss {loss.item():.3f}")
