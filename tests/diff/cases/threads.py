"""Sums over many rows have other bits with another number of threads (pytorch#88718)."""

import sys

import torch
from common import VARIANT
from torch import nn

torch.set_num_threads(6 if VARIANT == "b" else 1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(56, 444), nn.BatchNorm1d(444), nn.Tanh(), nn.Linear(444, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    inputs = torch.randn(4096, 56)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
sys.exit(0)
