"""Cross-validation in one process: a new model and optimizer for each fold, then one for all."""

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

FOLDS, ROWS = 3, 300
torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data[:ROWS], dtype=torch.float32) / 16
labels = torch.tensor(digits.target[:ROWS])


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))


order = torch.randperm(ROWS)
scores, kept = [], []
for fold in range(FOLDS):
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    held_out = order[fold::FOLDS]
    rest = order[~torch.isin(order, held_out)]
    loader = DataLoader(TensorDataset(images, labels), 32, sampler=SubsetRandomSampler(rest))
    for _ in range(3):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(images[held_out]).argmax(1) == labels[held_out]
        scores.append(right.float().mean().item())
    kept.append(copy.deepcopy(model.state_dict()))

final = make()
optimizer = torch.optim.Adam(final.parameters(), lr=5e-3)
for _ in range(12):
    optimizer.zero_grad()
    F.cross_entropy(final(images), labels).backward()
    optimizer.step()
print([round(score, 3) for score in scores])
