"""Digits, with a separate optimizer for the head."""

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
        self.fc1, self.fc2 = nn.Linear(64, 48), nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
head_optimizer = torch.optim.SGD(model.fc2.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    head_optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    head_optimizer.step()
print(round(loss.item(), 3))
