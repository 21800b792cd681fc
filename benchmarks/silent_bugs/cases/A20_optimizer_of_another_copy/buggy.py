"""Digits, trained by an engine."""

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


class Engine:
    """A wrapper that keeps its own model and does not look at what the optimizer holds."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.module, self.optimizer = model, optimizer

    def train_batch(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.module(x), y)
        loss.backward()
        self.optimizer.step()
        return loss


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
copied = Net()
copied.load_state_dict(model.state_dict())
engine = Engine(copied, optimizer)
for x, y in loader:
    loss = engine.train_batch(x, y)
print(round(loss.item(), 3))
