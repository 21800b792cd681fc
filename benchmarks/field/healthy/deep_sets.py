"""Sets of different sizes, summed under a mask."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

model_parts = nn.ModuleDict(
    {
        "element": nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32)),
        "whole": nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)),
    }
)
optimizer = torch.optim.Adam(model_parts.parameters(), lr=3e-3)
for step in range(50):
    sizes = torch.randint(2, 9, (32,))
    mask = (torch.arange(8)[None] < sizes[:, None]).float()
    x = torch.randn(32, 8, 3) * mask[..., None]
    goal = (x.norm(dim=-1) * mask).sum(1) / 4
    elements = model_parts["element"](x) * mask[..., None]
    loss = F.mse_loss(model_parts["whole"](elements.sum(1)).squeeze(1), goal).sqrt()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: rmse {loss.item():.4f}")
