"""SimSiam: one encoder, a predictor, and a stopped gradient."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


def view(x):
    return x * (torch.rand_like(x) > 0.2) + 0.05 * torch.randn_like(x)


class SimSiam(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, 96, bias=False),
            nn.BatchNorm1d(96),
            nn.ReLU(),
            nn.Linear(96, 48, bias=False),
            nn.BatchNorm1d(48, affine=False),
        )
        self.predictor = nn.Sequential(nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 48))

    def forward(self, one, two):
        z1, z2 = self.encoder(one), self.encoder(two)
        return self.predictor(z1), self.predictor(z2), z1.detach(), z2.detach()


model = SimSiam()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
for epoch in range(3):
    for index in torch.randperm(1792).split(128):
        p1, p2, z1, z2 = model(view(images[index]), view(images[index]))
        loss = -(F.cosine_similarity(p1, z2).mean() + F.cosine_similarity(p2, z1).mean()) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    schedule.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
