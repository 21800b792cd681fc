"""Federated averaging in one process: copies train on their own data and are averaged."""

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

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
shares = labels.argsort().view(-1)[:1792].split(256)
for round_ in range(3):
    states, sizes = [], []
    for client in torch.randperm(len(shares))[:4].tolist():
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
        for index in shares[client][torch.randperm(len(shares[client]))].split(64):
            loss = F.cross_entropy(local(images[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        states.append(local.state_dict())
        sizes.append(len(shares[client]))
    mean = {
        name: sum(state[name] * size for state, size in zip(states, sizes)) / sum(sizes)
        for name in states[0]
    }
    model.load_state_dict(mean)
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean()
    print(f"round {round_}: loss {loss.item():.4f} accuracy {right:.3f}")
