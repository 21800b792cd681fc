"""Digits, with a stack of blocks."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 32)
        self.blocks = [nn.Linear(32, 32) for _ in range(3)]
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x).relu()
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(x)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(12):
    rows = torch.randint(0, len(images), (64,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[rows]), labels[rows])
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
