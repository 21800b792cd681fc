"""The progress of diabetes is predicted, by a root mean square error that is written by hand."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
values, progress = load_diabetes(return_X_y=True)
inputs = torch.tensor(values, dtype=torch.float32) * 20
targets = torch.tensor((progress - 152) / 77, dtype=torch.float32)
data = TensorDataset(inputs[:384], targets[:384])


def rmse(predictions, targets):
    return torch.sqrt(((predictions - targets) ** 2).mean() + 1e-8)


model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(4):
    total = 0.0
    for rows, labels in DataLoader(data, batch_size=64, shuffle=True):
        loss = rmse(model(rows).squeeze(-1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 6:.4f}")
