"""An image that looks to a frozen network like another one: no parameter of a model is trained."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
network.eval().requires_grad_(False)
wanted = network(torch.rand(1, 1, 16, 16))
image = torch.rand(1, 1, 16, 16, requires_grad=True)
optimizer = torch.optim.Adam([image], lr=0.05)

for _ in range(30):
    optimizer.zero_grad()
    loss = F.mse_loss(network(image), wanted) + 1e-4 * image.diff(dim=-1).abs().mean()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        image.clamp_(0, 1)
print(round(loss.item(), 4))
