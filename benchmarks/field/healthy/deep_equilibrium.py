"""A deep equilibrium layer: a fixed point, and its implicit gradient by a hook."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Equilibrium(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inject = nn.Linear(64, width)
        self.cell = nn.Linear(width, width)
        nn.init.normal_(self.cell.weight, std=0.5 / width**0.5)

    def f(self, z, x):
        return torch.tanh(self.cell(z) + x)

    def solve(self, f, z):
        for _ in range(25):
            z = f(z)
        return z

    def forward(self, x):
        x = self.inject(x)
        with torch.no_grad():
            z = self.solve(lambda z: self.f(z, x), torch.zeros_like(x))
        z = self.f(z, x)
        if self.training:
            start = z.detach().requires_grad_(True)
            end = self.f(start, x)
            z.register_hook(
                lambda grad: self.solve(
                    lambda g: torch.autograd.grad(end, start, g, retain_graph=True)[0] + grad, grad
                )
            )
        return z


model = nn.Sequential(Equilibrium(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    for index in torch.randperm(len(images)).split(128):
        loss = F.cross_entropy(model(images[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
