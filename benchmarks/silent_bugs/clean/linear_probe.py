"""A new head on frozen features: the body stays in evaluation mode, statistics and all."""

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


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 32)
        )
        self.head = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


model = Net()
model.body.requires_grad_(False)
model.eval()  # nothing in the head depends on the mode
optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y % 2)
    loss.backward()
    optimizer.step()
print(round(loss.item(), 3))
