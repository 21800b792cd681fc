"""MAML on sine waves: a loss of adapted weights, its gradient that of the weights of the model."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for _ in range(20):
    optimizer.zero_grad()
    total = torch.zeros(())
    for _ in range(4):
        amplitude, phase = 0.1 + 4 * torch.rand(1), 3 * torch.rand(1)
        support, query = 10 * torch.rand(10, 1) - 5, 10 * torch.rand(10, 1) - 5
        weights = dict(model.named_parameters())
        target = amplitude * torch.sin(support + phase)
        loss = F.mse_loss(functional_call(model, weights, support), target)
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        adapted = {
            name: weight - 0.01 * gradient
            for (name, weight), gradient in zip(weights.items(), gradients)
        }
        target = amplitude * torch.sin(query + phase)
        total = total + F.mse_loss(functional_call(model, adapted, query), target) / 4
    total.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
print(round(total.item(), 3))
