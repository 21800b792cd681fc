"""A decoder learns digits; then the latent code of one is searched for, as AnoGAN does."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
images = torch.tensor(load_digits().data / 16, dtype=torch.float32)
loader = DataLoader(TensorDataset(images), 128, shuffle=True)
encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
for epoch in range(3):
    for (inputs,) in loader:
        loss = F.mse_loss(decoder(encoder(inputs)), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

decoder.requires_grad_(False)
code = torch.randn(1, 8, requires_grad=True)
search = torch.optim.Adam([code], lr=5e-2)
for _ in range(60):
    residual = F.l1_loss(decoder(code), images[:1])
    residual.backward()
    search.step()
print(f"residual {residual.item():.4f}")
