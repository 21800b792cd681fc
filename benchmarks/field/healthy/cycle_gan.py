"""Two generators, two discriminators, a cycle, and a pool of earlier fakes."""

import itertools
import random

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


def generator():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))


def discriminator():
    return nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


class Pool:
    def __init__(self, size=40):
        self.size, self.kept, self.random = size, [], random.Random(0)

    def query(self, fakes):
        out = []
        for fake in fakes:
            if len(self.kept) < self.size:
                self.kept.append(fake)
                out.append(fake)
            elif self.random.random() > 0.5:
                place = self.random.randrange(self.size)
                out.append(self.kept[place])
                self.kept[place] = fake
            else:
                out.append(fake)
        return torch.stack(out)


turn = torch.linalg.qr(torch.randn(8, 8)).Q
to_b, to_a, d_a, d_b = generator(), generator(), discriminator(), discriminator()
optimizer_g = torch.optim.Adam(
    itertools.chain(to_b.parameters(), to_a.parameters()), lr=2e-3, betas=(0.5, 0.999)
)
optimizer_d = torch.optim.Adam(
    itertools.chain(d_a.parameters(), d_b.parameters()), lr=2e-3, betas=(0.5, 0.999)
)
pool_a, pool_b = Pool(), Pool()
for step in range(30):
    a, b = torch.rand(16, 8), torch.rand(16, 8) @ turn
    for net in (d_a, d_b):
        net.requires_grad_(False)
    fake_b, fake_a = to_b(a), to_a(b)
    score_a, score_b = d_a(fake_a), d_b(fake_b)
    loss_g = F.mse_loss(score_a, torch.ones_like(score_a))
    loss_g = loss_g + F.mse_loss(score_b, torch.ones_like(score_b))
    loss_g = loss_g + 10 * (F.l1_loss(to_a(fake_b), a) + F.l1_loss(to_b(fake_a), b))
    optimizer_g.zero_grad()
    loss_g.backward()
    optimizer_g.step()
    for net in (d_a, d_b):
        net.requires_grad_(True)
    loss_d = 0.0
    for net, real, fake in (
        (d_a, a, pool_a.query(fake_a.detach())),
        (d_b, b, pool_b.query(fake_b.detach())),
    ):
        good, bad = net(real), net(fake)
        loss_d = loss_d + F.mse_loss(good, torch.ones_like(good)) / 2
        loss_d = loss_d + F.mse_loss(bad, torch.zeros_like(bad)) / 2
    optimizer_d.zero_grad()
    loss_d.backward()
    optimizer_d.step()
    if step % 10 == 9:
        print(f"step {step}: generators {loss_g.item():.3f} discriminators {loss_d.item():.3f}")
