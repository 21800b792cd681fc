"""An autoencoder whose codes are matched to a prior by a critic: three optimizers."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 6))
decoder = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid())
critic = nn.Sequential(nn.Linear(6, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
restore = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
judge = torch.optim.Adam(critic.parameters(), lr=1e-3)
fool = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for epoch in range(2):
    for index in torch.randperm(len(images)).split(64):
        x = images[index]
        restored = F.mse_loss(decoder(encoder(x)), x)
        restore.zero_grad()
        restored.backward()
        restore.step()
        real, fake = critic(torch.randn(len(x), 6)), critic(encoder(x).detach())
        told = F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
        told = told + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
        judge.zero_grad()
        told.backward()
        judge.step()
        score = critic(encoder(x))
        fooled = F.binary_cross_entropy_with_logits(score, torch.ones_like(score))
        fool.zero_grad()
        fooled.backward()
        fool.step()
    print(f"epoch {epoch}: restored {restored.item():.4f} told {told.item():.3f}")
