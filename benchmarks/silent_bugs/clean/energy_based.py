"""An energy: inputs are sampled along its gradients; a saliency map follows each epoch."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
energy = nn.Sequential(nn.Linear(64, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.Adam(energy.parameters(), lr=1e-3)
for epoch in range(3):
    energy.train()
    for _ in range(8):
        sampled = torch.rand(32, 64, requires_grad=True)
        for _ in range(4):
            energy(sampled).sum().backward()
            with torch.no_grad():
                sampled -= 0.1 * sampled.grad + 0.01 * torch.randn_like(sampled)
            sampled.grad = None
        real = energy(images[torch.randint(len(images), (32,))])
        fake = energy(sampled.detach())
        loss = real.mean() - fake.mean() + 0.1 * (real**2 + fake**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    energy.eval()
    looked_at = images[:4].clone().requires_grad_()
    energy(looked_at).sum().backward()
    print(epoch, round(loss.item(), 3), round(looked_at.grad.abs().mean().item(), 4))
