"""A Wasserstein critic whose weights are clipped by hand after each of its five steps."""

import torch
from sklearn.datasets import load_digits
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    real_images = torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1
    generator = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64), nn.Tanh())
    critic = nn.Sequential(nn.Linear(64, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
    optimizer_c = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
    for step in range(8):
        for _ in range(5):
            real = real_images[torch.randint(0, len(real_images), (32,))]
            with torch.no_grad():
                fake = generator(torch.randn(32, 8))
            optimizer_c.zero_grad()
            loss_c = critic(fake).mean() - critic(real).mean()
            loss_c.backward()
            optimizer_c.step()
            with torch.no_grad():
                for parameter in critic.parameters():
                    parameter.clamp_(-0.05, 0.05)
        optimizer_g.zero_grad()
        loss_g = -critic(generator(torch.randn(32, 8))).mean()
        loss_g.backward()
        optimizer_g.step()
        print(step, round(loss_c.item(), 4), round(loss_g.item(), 4))


main()
