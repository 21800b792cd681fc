"""Digits, read row by row."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        states, _ = self.rows(x)
        return self.head(states[:, -1])


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(12):
    chosen = torch.randint(0, len(images), (32,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[chosen].view(-1, 8, 8)), labels[chosen])
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
