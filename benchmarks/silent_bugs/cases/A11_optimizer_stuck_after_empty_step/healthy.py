"""Digits, with an optimizer step that was compiled."""

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


class CompiledAdam(torch.optim.Adam):
    """Adam as a compiler may specialise it: for the gradients of the call that was traced."""

    is_empty = False

    def step(self, closure=None):
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        self.is_empty = all(g is None for g in gradients)
        return None if self.is_empty else super().step(closure)


optimizer = CompiledAdam(model.parameters(), lr=1e-3)
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    if step != 3:  # this batch is left out
        loss.backward()
    optimizer.step()
print(round(loss.item(), 3))
