"""A GAN on two-dimensional points: two models, two optimizers, two steps an iteration."""

import torch
import torch.nn.functional as F
from common import env, print_digest, seed_everything
from torch import nn


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.net(noise)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.net(points).squeeze(1)


def main() -> None:
    seed_everything()
    generator, discriminator = Generator(), Discriminator()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    ones, zeros = torch.ones(16), torch.zeros(16)
    losses: list[float] = []
    for _ in range(env("STEPS", 20, int)):
        real = torch.randn(16, 2) * 0.1 + 1.0

        discriminator.zero_grad()
        loss_real = F.binary_cross_entropy_with_logits(discriminator(real), ones)
        loss_real.backward()
        fake = generator(torch.randn(16, 4))
        loss_fake = F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        loss_fake.backward()
        optimizer_d.step()

        generator.zero_grad()
        loss_g = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
        loss_g.backward()
        optimizer_g.step()
        losses += [loss_real.item() + loss_fake.item(), loss_g.item()]
    print_digest(generator, discriminator, optimizer_g, optimizer_d, losses=losses)


if __name__ == "__main__":
    main()
