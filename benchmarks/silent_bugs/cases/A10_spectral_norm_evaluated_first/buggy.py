"""A critic of even and odd digits, with spectral normalisation."""

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


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first, last = nn.Linear(64, 128), nn.Linear(128, 1)
        self.body = nn.Sequential(nn.utils.spectral_norm(first), nn.ReLU(), last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def evaluate() -> float:
    model.eval()
    with torch.no_grad():
        score = model(images[768:]).abs().mean().item()
    model.train()
    return round(score, 3)


model = Critic()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
print("before training", evaluate())
for x, y in loader:
    optimizer.zero_grad()
    loss = F.softplus(torch.where(y[:, None] % 2 == 0, model(x), -model(x))).mean()
    loss.backward()
    optimizer.step()
print("after", evaluate())
