"""A Wasserstein GAN with gradient penalty: five steps of the critic for one of the generator."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

real_images = images * 2 - 1
generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh())
critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))


def penalty(real, fake):
    alpha = torch.rand(len(real), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()


for step in range(12):
    for _ in range(5):
        real = real_images[torch.randint(0, len(real_images), (64,))]
        fake = generator(torch.randn(64, 16)).detach()
        loss_c = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
        optimizer_c.zero_grad()
        loss_c.backward()
        optimizer_c.step()
    loss_g = -critic(generator(torch.randn(64, 16))).mean()
    optimizer_g.zero_grad()
    loss_g.backward()
    optimizer_g.step()
    print(f"step {step}: critic {loss_c.item():.3f} generator {loss_g.item():.3f}")
