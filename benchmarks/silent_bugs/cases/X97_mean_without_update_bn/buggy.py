"""Digits, and a mean of the weights of the last epochs."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
loader = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=64, shuffle=True)
model = nn.Sequential(
    nn.Linear(64, 48, bias=False), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
mean, schedule = AveragedModel(model), SWALR(optimizer, swa_lr=0.05, anneal_epochs=1)
for epoch in range(4):
    for batch, target in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(batch), target).backward()
        optimizer.step()
    if epoch:
        mean.update_parameters(model)
        schedule.step()
mean.eval()
with torch.no_grad():
    right = (mean(x[1024:]).argmax(1) == y[1024:]).float().mean().item()
print(f"accuracy of the mean {right:.3f}")
