"""Digits, with a learning rate that falls as the inverse of a power of the step."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
data = TensorDataset(images[:1280], torch.tensor(digits.target[:1280]))
rate = 0.01


def decay(step):
    return (1 + 0.001 * step) ** -0.75


model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
for epoch in range(2):
    total = 0.0
    for pixels, labels in DataLoader(data, batch_size=64, shuffle=True):
        loss = F.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 20:.4f}")
