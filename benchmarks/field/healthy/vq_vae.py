"""A VQ-VAE: nearest codes with a straight-through gradient."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Quantizer(nn.Module):
    def __init__(self, codes=32, width=8):
        super().__init__()
        self.codes = nn.Embedding(codes, width)
        nn.init.uniform_(self.codes.weight, -1 / codes, 1 / codes)

    def forward(self, z):
        far = torch.cdist(z, self.codes.weight)
        q = self.codes(far.argmin(1))
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), loss


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
        self.quantizer = Quantizer()
        self.decoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x):
        z = self.encoder(x).view(-1, 8)
        q, loss = self.quantizer(z)
        return self.decoder(q.view(len(x), 32)), loss


model = VQVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(2):
    for index in torch.randperm(len(images)).split(64):
        restored, commitment = model(images[index])
        loss = F.mse_loss(restored, images[index]) + commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
