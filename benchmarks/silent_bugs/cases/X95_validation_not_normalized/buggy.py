"""Digits: batches of training are normalized, and so are those of validation, or not."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()


class Digits(Dataset):
    def __init__(self, rows, mean=0.0, std=1.0):
        self.images, self.labels = digits.images[rows], digits.target[rows]
        self.mean, self.std = mean, std

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = torch.tensor(self.images[index], dtype=torch.float32)[None] / 16
        return (image - self.mean) / self.std, int(self.labels[index])


train = DataLoader(Digits(slice(0, 512), 0.305, 0.376), batch_size=64, shuffle=True)
held_out = DataLoader(Digits(slice(1024, 1536)), batch_size=128)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU(), nn.Linear(32, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(3):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in held_out)
    print(f"epoch {epoch} accuracy {right / 512:.3f}")
