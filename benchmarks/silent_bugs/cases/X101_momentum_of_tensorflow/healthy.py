"""Digits are told apart by a small network with batch normalization, ported from TensorFlow."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
training = TensorDataset(images[:1500], labels[:1500])


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs, momentum=0.01, eps=1e-3),
        nn.ReLU(),
    )


model = nn.Sequential(
    block(1, 16), nn.MaxPool2d(2), block(16, 32), nn.Flatten(), nn.Linear(512, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(2):
    model.train()
    for inputs, targets in DataLoader(training, batch_size=8, shuffle=True, drop_last=True):
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.4f}")
