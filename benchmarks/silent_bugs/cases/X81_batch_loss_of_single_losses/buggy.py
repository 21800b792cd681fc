"""Digits, with a loss that is put together from one loss a sample."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(12):
    rows = torch.randint(0, len(images), (32,))
    optimizer.zero_grad()
    losses = [F.cross_entropy(model(images[row : row + 1]), labels[row : row + 1]) for row in rows]
    loss = torch.tensor(losses, requires_grad=True).mean()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
