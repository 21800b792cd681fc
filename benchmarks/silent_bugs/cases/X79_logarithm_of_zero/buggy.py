"""Digits, classified by a small network with a custom loss."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(12):
    rows = torch.randint(0, len(images), (64,))
    optimizer.zero_grad()
    odds = F.relu(model(images[rows]))
    chosen = odds.gather(1, labels[rows].unsqueeze(1)).squeeze(1)
    loss = (odds.sum(1).log() - chosen.log()).mean()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
