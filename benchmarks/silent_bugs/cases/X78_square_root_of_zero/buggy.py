"""Digits, embedded so that equal ones are close."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(12):
    left, right = torch.randint(0, len(images), (64,)), torch.randint(0, len(images), (64,))
    if step >= 3:
        right[0] = left[0]  # now and then a pair is one and the same image
    optimizer.zero_grad()
    squared = (model(images[left]) - model(images[right])).pow(2).sum(1)
    distance = torch.sqrt(squared)
    same = (labels[left] == labels[right]).float()
    loss = (same * distance + (1 - same) * F.relu(1 - distance)).mean()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
