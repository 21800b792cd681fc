"""A scorer learns from pairs which of two items is liked better."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

left, right, taste = torch.randn(1280, 16), torch.randn(1280, 16), torch.randn(16)
is_better = ((left - right) @ taste > 0).float()
loader = DataLoader(TensorDataset(left, right, is_better), 64, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
criterion = nn.MarginRankingLoss(margin=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(3):
    for a, b, better in loader:
        optimizer.zero_grad()
        loss = criterion(model(a).squeeze(1), model(b).squeeze(1), 2 * better - 1)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
