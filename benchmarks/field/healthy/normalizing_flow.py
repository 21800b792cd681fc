"""RealNVP: coupling layers trained by exact likelihood."""

import math

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 2))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        scale, shift = self.net(a).chunk(2, 1)
        scale = scale.tanh()
        b = b * scale.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], 1), scale.sum(1)


flow = nn.ModuleList([Coupling(i % 2 == 1) for i in range(6)])
optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
for step in range(60):
    angle = math.pi * torch.rand(128)
    x = torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(128, 2)
    z, logdet = x, 0.0
    for layer in flow:
        z, more = layer(z)
        logdet = logdet + more
    loss = (0.5 * z.pow(2).sum(1) + math.log(2 * math.pi) - logdet).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step}: nll {loss.item():.4f}")
