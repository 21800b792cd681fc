"""An autoencoder of images that are normalized to -1 and 1."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

shapes = torch.rand(8, 64)
images = ((torch.rand(1280, 8).softmax(1) @ shapes).clamp(0, 1) - 0.5) / 0.5
images = (images * 4).clamp(-1, 1)
loader = DataLoader(TensorDataset(images), 64, shuffle=True)
encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Tanh())
model = nn.Sequential(encoder, decoder)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
