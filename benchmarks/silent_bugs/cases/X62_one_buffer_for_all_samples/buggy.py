"""Digits that a dataset augments in its buffer."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Images moved to one side by a pixel or not at all."""

    def __init__(self):
        digits = load_digits()
        self.images = torch.tensor(digits.data[:640], dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(digits.target[:640])
        self.moved = torch.zeros(1, 8, 8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        self.moved.copy_(self.images[index].roll(int(torch.randint(-1, 2, ())), dims=2))
        return self.moved, self.labels[index]


torch.manual_seed(0)
torch.set_num_threads(1)
loader = DataLoader(Digits(), batch_size=64, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 32), nn.ReLU(), nn.Linear(32, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, round(loss.item(), 3))
