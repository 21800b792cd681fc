"""Accumulation where the last window of an epoch has fewer micro-batches."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

ACCUMULATE = 4
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(3):
    parts = torch.randperm(len(images)).split(128)
    for begin in range(0, len(parts), ACCUMULATE):
        window = parts[begin : begin + ACCUMULATE]
        total = sum(len(index) for index in window)
        optimizer.zero_grad()
        for index in window:
            loss = F.cross_entropy(model(images[index]), labels[index], reduction="sum") / total
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"epoch {epoch}: last part {loss.item():.4f}")
