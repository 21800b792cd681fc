"""A network that solves a differential equation: derivatives by inputs are in the loss."""

import math

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(60):
    x = (math.pi * torch.rand(64, 1)).requires_grad_(True)
    u = net(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    residual = (bend + torch.sin(x)).pow(2).mean()
    ends = net(torch.tensor([[0.0], [math.pi]])).pow(2).mean()
    loss = residual + 10 * ends
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step}: residual {residual.item():.4f} ends {ends.item():.4f}")
