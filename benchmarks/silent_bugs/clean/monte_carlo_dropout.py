"""Digits with an estimate of uncertainty: dropout stays on for several passes of evaluation."""

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
loader = DataLoader(TensorDataset(images[:768], labels[:768]), batch_size=64, shuffle=True)
held_out = DataLoader(TensorDataset(images[768:1024], labels[768:1024]), batch_size=64)


class AlwaysDropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.p, training=True)


model = nn.Sequential(
    nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 32), AlwaysDropout(0.1),
    nn.Linear(32, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
model.eval()
for module in model.modules():
    if isinstance(module, nn.Dropout):
        module.train()
with torch.no_grad():
    for x, _ in held_out:
        passes = torch.stack([model(x).softmax(dim=-1) for _ in range(4)])
print(round(loss.item(), 3), round(passes.std(dim=0).mean().item(), 4))
