"""Digits that resist small changes: examples are made in evaluation mode, training follows."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images[:640], labels[:640]), batch_size=64, shuffle=True)
model = nn.Sequential(
    nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def attack(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Three steps uphill, on the same batch."""
    model.eval()
    changed = x.clone()
    for _ in range(3):
        changed.requires_grad_(True)
        model.zero_grad()
        F.cross_entropy(model(changed), y).backward()
        with torch.no_grad():
            changed = (changed + 0.02 * changed.grad.sign()).clamp(0, 1)
    model.train()
    return changed.detach()


for x, y in loader:
    adversarial = attack(x, y)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(adversarial), y)
    loss.backward()
    optimizer.step()
print(round(loss.item(), 3))
