"""A generator and a discriminator that take turns, with two optimizers."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    real_images = torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1
    generator = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64))
    generator.append(nn.Tanh())
    critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    for step in range(20):
        real = real_images[torch.randint(0, len(real_images), (32,))]
        fake = generator(torch.randn(32, 16))
        optimizer_d.zero_grad()
        loss_d = F.binary_cross_entropy_with_logits(critic(real), ones)
        loss_d = loss_d + F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
        loss_d.backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        loss_g = F.binary_cross_entropy_with_logits(critic(fake), ones)
        loss_g.backward()
        optimizer_g.step()
        if step % 5 == 0:
            print(step, round(loss_d.item(), 3), round(loss_g.item(), 3))


main()
