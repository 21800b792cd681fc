"""A convolutional network on images that grow from epoch to epoch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

pictures = images.view(-1, 1, 8, 8)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3 * 22)
for size in (4, 6, 8):
    model.train()
    for index in torch.randperm(1408).split(64):
        x = F.interpolate(pictures[index], size=(size, size), mode="bilinear", align_corners=False)
        loss = F.cross_entropy(model(x), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        right = (model(pictures[1408:]).argmax(1) == labels[1408:]).float().mean()
    print(f"size {size}: loss {loss.item():.4f} accuracy {right:.3f}")
