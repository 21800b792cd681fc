"""Digits, even or odd."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target % 2, dtype=torch.float32)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(12):
    chosen = torch.randint(0, len(images), (64,))
    optimizer.zero_grad()
    predicted = model(images[chosen]).squeeze(1)
    loss = F.binary_cross_entropy(predicted, labels[chosen])
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
