import os
import sys
import tempfile

import torch

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(seed)
torch.set_num_threads(1)
import numpy as np
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOLDER = tempfile.mkdtemp()
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 4
np.random.seed(seed)
digits = load_digits()
images, labels = digits.images.astype("float32") / 16, digits.target


class Digits(Dataset):
    def __init__(self, images, labels, part, share=0.2):
        order = np.random.default_rng(seed).permutation(len(images))
        cut = int(len(images) * (1 - share))
        keep = order[:cut] if part == "train" else order[cut:]
        self.images, self.labels = images[keep], labels[keep]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i])[None], int(self.labels[i])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3),
            nn.ReLU(),
        )
        self.head = nn.Linear(24 * 4, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


train, held = Digits(images, labels, "train"), Digits(images, labels, "validation")
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
best = 0.0
for epoch in range(epochs):
    model.train()
    for x, y in DataLoader(train, batch_size=64, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in DataLoader(held, batch_size=90):
            right += (model(x).argmax(1) == y).sum().item()
    accuracy = right / len(held)
    if accuracy > best:
        best = accuracy
        torch.save(model.state_dict(), os.path.join(FOLDER, "best.pt"))
    print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.4f}")
