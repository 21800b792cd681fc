"""Three models as one: their parameters are stacked, and vmap runs a skeleton without weights."""

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images[:1024], labels[:1024]), batch_size=64, shuffle=True)
models = [nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)) for _ in range(3)]
parameters, buffers = stack_module_state(models)
skeleton = copy.deepcopy(models[0]).to("meta")
optimizer = torch.optim.Adam(parameters.values(), lr=1e-3)


def member(
    weights: dict[str, torch.Tensor], statistics: dict[str, torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    return functional_call(skeleton, (weights, statistics), (x,))


for x, y in loader:
    results = vmap(member, (0, 0, None))(parameters, buffers, x)
    loss = F.cross_entropy(results.flatten(0, 1), y.repeat(3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(round(loss.item(), 3))
