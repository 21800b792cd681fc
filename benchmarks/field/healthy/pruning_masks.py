"""Magnitude pruning with masks, in rounds, with training in between."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

from torch.nn.utils import prune

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
layers = [(model[0], "weight"), (model[2], "weight")]


def train(epochs, optimizer):
    for _ in range(epochs):
        for index in torch.randperm(len(images)).split(128):
            loss = F.cross_entropy(model(images[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


print(f"dense: loss {train(2, optimizer):.4f}")
for amount in (0.3, 0.5):
    prune.global_unstructured(layers, pruning_method=prune.L1Unstructured, amount=amount)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    print(f"pruned by {amount}: loss {train(1, optimizer):.4f}")
for layer, name in layers:
    prune.remove(layer, name)
left = sum((layer.weight != 0).sum().item() for layer, _ in layers)
print(f"{left} weights left")
