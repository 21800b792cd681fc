"""Digits, with two experts behind a router."""

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
data = TensorDataset(images[:768], labels[:768])
loader = DataLoader(data, batch_size=64, shuffle=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(64, 32), nn.Linear(32, 10)
        self.router = nn.Linear(32, 2)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.embed(x))
        weights = torch.softmax(self.router(x), dim=-1)
        mixed = sum(w[:, None] * e(x) for w, e in zip(weights.T, self.experts))
        return self.head(x + torch.relu(mixed))


def initialize(model: Net) -> Net:
    """Replace modules by faster ones, like a library."""
    model.router = nn.Linear(32, 2)
    model.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
    return model


model = Net()
model = initialize(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(round(loss.item(), 3))
