"""ArcFace: a margin is added to the angle of the right class."""

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


class ArcFace(nn.Module):
    def __init__(self, width=16, classes=10, scale=16.0, margin=0.3):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, width))
        nn.init.xavier_uniform_(self.weight)
        self.scale, self.margin = scale, margin

    def forward(self, z, target):
        cosine = F.linear(F.normalize(z), F.normalize(self.weight)).clamp(-1 + 1e-6, 1 - 1e-6)
        shifted = (cosine.acos() + self.margin).clamp(max=math.pi).cos()
        right = F.one_hot(target, 10).bool()
        return F.cross_entropy(self.scale * torch.where(right, shifted, cosine), target)


body, head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)), ArcFace()
optimizer = torch.optim.SGD(
    [{"params": body.parameters()}, {"params": head.parameters(), "weight_decay": 5e-4}],
    lr=0.05,
    momentum=0.9,
)
for epoch in range(2):
    for index in torch.randperm(len(images)).split(64):
        loss = head(body(images[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
