"""A causal convolutional forecaster of quantiles, with weight norm."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

from torch.nn.utils.parametrizations import weight_norm

LEVELS = torch.tensor([0.1, 0.5, 0.9])


class Causal(nn.Module):
    def __init__(self, inside, outside, dilation):
        super().__init__()
        self.left = 2 * dilation
        self.conv = weight_norm(nn.Conv1d(inside, outside, 3, dilation=dilation))
        self.skip = nn.Conv1d(inside, outside, 1)

    def forward(self, x):
        return F.relu(self.conv(F.pad(x, (self.left, 0)))) + self.skip(x)


model = nn.Sequential(Causal(1, 16, 1), Causal(16, 16, 2), Causal(16, 16, 4), nn.Conv1d(16, 3, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
t = torch.arange(49).float()
for step in range(40):
    phase, speed = 6.3 * torch.rand(32, 1), 0.2 + 0.3 * torch.rand(32, 1)
    series = torch.sin(phase + speed * t) + 0.2 * torch.randn(32, 49)
    out = model(series[:, None, :-1]).transpose(1, 2)
    error = series[:, 1:, None] - out
    loss = torch.max(LEVELS * error, (LEVELS - 1) * error).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: pinball {loss.item():.4f}")
