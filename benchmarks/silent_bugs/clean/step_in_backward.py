"""An optimizer for each parameter, which steps as soon as backward has computed its gradient."""

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
loader = DataLoader(TensorDataset(images[:1024], labels[:1024]), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
optimizers = {parameter: torch.optim.Adam([parameter], lr=1e-3) for parameter in model.parameters()}


def update(parameter: torch.Tensor) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
print(round(loss.item(), 3))
