"""Start-up of a large model of tiny parts. ``UP_KIND``: modules (30,000) or parameters (5,000)."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(os.environ.get("UP_HOME", __file__))))
import time

import torch
import torch._dynamo  # optimizers import it: not a part of what is measured
from common import StepTimer, env
from torch import nn


def make(kind: str, size: int) -> nn.Module:
    """A model of ``size`` modules or parameters."""
    if kind == "modules":
        parts = [nn.Sequential(nn.ReLU(), nn.Identity()) for _ in range(size // 3)]
        return nn.Sequential(nn.Linear(4, 4), *parts, nn.Linear(4, 4))
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(size // 2)])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind = env("KIND", "modules")
    began = time.process_time()
    model = make(kind, env("SIZE", 30_000 if kind == "modules" else 5_000, int))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    init = time.process_time() - began
    data = torch.randn(2, 4)
    timer = StepTimer()
    for _ in range(env("STEPS", 2, int)):
        optimizer.zero_grad()
        loss = model(data).sum()
        loss.backward()
        optimizer.step()
        timer.tick(loss.item())
    timer.dump(init=init)


if __name__ == "__main__":
    main()
