"""BYOL: a predictor of one view's projection by an averaged target network."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


def network():
    return nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32))


def view(x):
    return x * (torch.rand_like(x) > 0.2) + 0.05 * torch.randn_like(x)


def distance(p, z):
    return 2 - 2 * F.cosine_similarity(p, z.detach(), dim=-1)


online, predictor = network(), nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam([*online.parameters(), *predictor.parameters()], lr=1e-3)
for epoch in range(2):
    for index in torch.randperm(len(images)).split(128)[:-1]:
        one, two = view(images[index]), view(images[index])
        with torch.no_grad():
            target_one, target_two = target(one), target(two)
        loss = distance(predictor(online(one)), target_two)
        loss = (loss + distance(predictor(online(two)), target_one)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters()):
                slow.lerp_(fast, 0.01)
    print(f"epoch {epoch}: loss {loss.item():.4f}")
