"""Digits, trained to flat minima: each step first computes the gradient uphill."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images[:768], labels[:768]), batch_size=64, shuffle=True)


class SharpnessAware(torch.optim.Optimizer):
    """Wraps another optimizer, as implementations of the method do."""

    def __init__(self, parameters, base, rho: float = 0.05, **options) -> None:
        super().__init__(parameters, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        for p in held:
            self.state[p]["before"] = p.clone()
            p.add_(p.grad, alpha=float(0.05 / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if "before" in self.state[p]:
                    p.copy_(self.state[p]["before"])
        self.base.step()


model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
optimizer = SharpnessAware(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.climb()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
print(round(loss.item(), 3))
