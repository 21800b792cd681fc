"""Gradients of single samples, each clipped, summed with noise and assigned: no backward at all."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images[:1024], labels[:1024]), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)


def loss_of(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(functional_call(model, weights, x[None]), y[None])


of_samples = vmap(grad(loss_of), in_dims=(None, 0, 0))
for x, y in loader:
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gradients = of_samples(weights, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    kept = (1 / (norms + 1e-6)).clamp(max=1)
    optimizer.zero_grad()
    for name, parameter in model.named_parameters():
        clipped = torch.einsum("n,n...->...", kept, gradients[name])
        parameter.grad = (clipped + 0.01 * torch.randn_like(parameter)) / len(x)
    optimizer.step()
with torch.no_grad():
    print(round(F.cross_entropy(model(images), labels).item(), 3))
