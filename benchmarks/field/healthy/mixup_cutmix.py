"""Mixup and cutmix in turn with soft labels and label smoothing."""

import random

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

random.seed(0)
pictures = images.view(-1, 1, 8, 8)


def mix(x, y):
    y = F.one_hot(y, 10).float() * 0.9 + 0.01
    order, share = torch.randperm(len(x)), random.betavariate(1.0, 1.0)
    if random.random() < 0.5:
        return share * x + (1 - share) * x[order], share * y + (1 - share) * y[order]
    side = int(8 * (1 - share) ** 0.5)
    top, left = random.randrange(9 - side), random.randrange(9 - side)
    x = x.clone()
    x[:, :, top : top + side, left : left + side] = x[
        order, :, top : top + side, left : left + side
    ]
    share = 1 - side * side / 64
    return x, share * y + (1 - share) * y[order]


model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(256, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for epoch in range(3):
    model.train()
    for index in torch.randperm(1408).split(64):
        x, y = mix(pictures[index], labels[index])
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(pictures[1408:]).argmax(1) == labels[1408:]).float().mean()
    print(f"epoch {epoch}: loss {loss.item():.4f} accuracy {right:.3f}")
