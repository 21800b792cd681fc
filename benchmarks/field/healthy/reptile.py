"""Reptile: inner steps on a copy, then the weights move towards it."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def task():
    size, phase = 0.5 + 2 * torch.rand(1), 3 * torch.rand(1)
    return lambda x: size * torch.sin(x + phase)


for outer in range(12):
    wave, fast = task(), copy.deepcopy(net)
    inner = torch.optim.SGD(fast.parameters(), lr=0.02)
    for _ in range(4):
        x = 10 * torch.rand(16, 1) - 5
        loss = F.mse_loss(fast(x), wave(x))
        inner.zero_grad()
        loss.backward()
        inner.step()
    with torch.no_grad():
        for slow, quick in zip(net.parameters(), fast.parameters()):
            slow.add_(quick - slow, alpha=0.3)
    if outer % 4 == 3:
        print(f"outer {outer}: loss {loss.item():.4f}")
