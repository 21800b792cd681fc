"""Digits are told apart, batch by batch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), 64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(8):
    seen = 0
    for batch in loader:
        seen += len(batch[1])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}, {seen} digits, loss {loss.item():.4f}")
