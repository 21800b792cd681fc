"""Lookahead: slow weights follow every fifth step of a fast optimizer."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner, period=5, share=0.5):
        self.inner, self.period, self.share, self.count = inner, period, share, 0
        super().__init__(inner.param_groups, {})
        self.slow = [[p.detach().clone() for p in g["params"]] for g in inner.param_groups]

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.inner.step(closure)
        self.count += 1
        if self.count % self.period == 0:
            for group, kept in zip(self.inner.param_groups, self.slow):
                for fast, slow in zip(group["params"], kept):
                    slow.lerp_(fast, self.share)
                    fast.copy_(slow)
        return loss


model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=3e-3))
for epoch in range(2):
    for index in torch.randperm(len(images)).split(64):
        loss = F.cross_entropy(model(images[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
