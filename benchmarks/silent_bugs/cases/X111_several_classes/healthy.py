"""Texts, as vectors, are tagged with any number of six tags."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

texts = torch.randn(1280, 20)
tags = (texts @ torch.randn(20, 6) + 0.3 * torch.randn(1280, 6) > 0).float()
loader = DataLoader(TensorDataset(texts, tags), 64, shuffle=True)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 6))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    for batch, wanted in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), wanted)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
