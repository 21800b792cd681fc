"""Digits with dropout; somebody seeds for reproducible steps."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(
    torch.tensor(images[:640], dtype=torch.float32) / 16, torch.tensor(labels[:640])
)
batches = DataLoader(data, batch_size=64, shuffle=True)


model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.5), nn.Linear(48, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for x, y in batches:
    torch.manual_seed(42)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
