"""A gated recurrence whose time steps are to be spread over three orders of magnitude."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Mixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward = nn.Linear(width, width)
        self.dt_bias = nn.Parameter(torch.empty(width))
        self.outward = nn.Linear(width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            nn.init.uniform_(self.dt_bias, math.log(1e-3), math.log(1e-1))
            dt = self.dt_bias.exp()
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drive, keep = self.inward(x), torch.exp(-F.softplus(self.dt_bias))
        state, states = torch.zeros_like(drive[:, 0]), []
        for t in range(x.shape[1]):
            state = keep * state + (1 - keep) * drive[:, t]
            states.append(state)
        return self.outward(torch.stack(states, dim=1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(1, 16), Mixer(16), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(12):
        x = torch.randn(16, 20, 1)
        wanted = x.cumsum(dim=1) / 5
        loss = F.mse_loss(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            print(step, round(loss.item(), 4))


main()
