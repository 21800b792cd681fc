"""Contrastive learning: two noisy views, a projection head, a learned temperature."""

import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(32, 16))
        self.log_scale = nn.Parameter(torch.tensor(math.log(5.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.projector(self.encoder(x)), dim=1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.tensor(load_digits().data[:512], dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(x), batch_size=64, shuffle=True, drop_last=True)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    for epoch in range(2):
        for (images,) in loader:
            one, two = (images + 0.1 * torch.randn_like(images) for _ in range(2))
            logits = model(one) @ model(two).T * model.log_scale.exp()
            target = torch.arange(len(images))
            loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, round(loss.item(), 3))


main()
