"""Contrast with a queue of keys from a momentum encoder."""

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

QUEUE, MOMENTUM, T = 256, 0.99, 0.2


def view(x):
    return x * (torch.rand_like(x) > 0.2) + 0.05 * torch.randn_like(x)


query = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))
key = copy.deepcopy(query)
for parameter in key.parameters():
    parameter.requires_grad_(False)
queue, pointer = F.normalize(torch.randn(32, QUEUE), dim=0), 0
optimizer = torch.optim.SGD(query.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
for epoch in range(2):
    for index in torch.randperm(1792).split(64):
        x = images[index]
        q = F.normalize(query(view(x)), dim=1)
        with torch.no_grad():
            for slow, fast in zip(key.parameters(), query.parameters()):
                slow.mul_(MOMENTUM).add_(fast, alpha=1 - MOMENTUM)
            k = F.normalize(key(view(x)), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        logits = torch.cat([positive, q @ queue.clone()], 1) / T
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue[:, pointer : pointer + len(x)] = k.T
        pointer = (pointer + len(x)) % QUEUE
    print(f"epoch {epoch}: loss {loss.item():.4f}")
