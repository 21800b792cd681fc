"""LoRA whose factors are merged for each evaluation and taken out again."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class LoraLinear(nn.Linear):
    def __init__(self, inside, outside, rank=4, alpha=8):
        super().__init__(inside, outside)
        self.weight.requires_grad_(False)
        self.bias.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, inside) / inside**0.5)
        self.b = nn.Parameter(torch.zeros(outside, rank))
        self.scale, self.merged = alpha / rank, False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            with torch.no_grad():
                self.weight += (-1 if mode else 1) * self.scale * self.b @ self.a
            self.merged = not mode
        return self

    def forward(self, x):
        out = super().forward(x)
        return out if self.merged else out + self.scale * (x @ self.a.T) @ self.b.T


model = nn.Sequential(LoraLinear(64, 64), nn.ReLU(), LoraLinear(64, 10))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
for epoch in range(3):
    model.train()
    for index in torch.randperm(1400).split(64):
        loss = F.cross_entropy(model(images[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean()
    print(f"epoch {epoch}: loss {loss.item():.4f} accuracy {right:.3f}")
