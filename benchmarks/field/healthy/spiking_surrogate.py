"""A spiking network: a step forward, a smooth surrogate backward."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, potential):
        ctx.save_for_backward(potential)
        return (potential > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (potential,) = ctx.saved_tensors
        return grad / (1 + 5 * potential.abs()) ** 2


class Spiking(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x, steps=8):
        potential, out = torch.zeros(len(x), 64), torch.zeros(len(x), 10)
        for _ in range(steps):
            spikes_in = (torch.rand_like(x) < x).float()
            potential = 0.9 * potential + self.first(spikes_in)
            spikes = Spike.apply(potential - 1)
            potential = potential - spikes.detach()
            out = 0.9 * out + self.last(spikes)
        return out


model = Spiking()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    for index in torch.randperm(len(images)).split(128):
        loss = F.cross_entropy(model(images[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
