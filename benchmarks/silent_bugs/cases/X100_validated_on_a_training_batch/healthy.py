"""Digits are told apart, and the loss on held-out ones chooses the weights that are kept."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
training = DataLoader(TensorDataset(images[:1280], labels[:1280]), batch_size=64, shuffle=True)
validation = DataLoader(TensorDataset(images[1280:], labels[1280:]), batch_size=64)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
best, kept = float("inf"), None
for epoch in range(3):
    model.train()
    for inputs, targets in training:
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    total = 0.0
    with torch.no_grad():
        for val_inputs, val_targets in validation:
            total += F.cross_entropy(model(val_inputs), val_targets).item()
    if total < best:
        best, kept = total, copy.deepcopy(model.state_dict())
    print(f"epoch {epoch} loss {loss.item():.4f} validation {total / len(validation):.4f}")
