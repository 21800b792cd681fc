"""The program updates the weights itself: there is no optimizer."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
for step in range(24):
    inputs = torch.randn(32, 8)
    model.zero_grad()
    loss = F.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    loss.backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.5)
    if step % 8 == 7:
        print(f"step {step} loss {loss.item():.4f}")
