"""Digits with noise that is drawn for each sample."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)


class Noisy(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        noise = np.random.normal(0, 0.1, 64)
        return torch.tensor(images[index] / 16 + noise, dtype=torch.float32), int(labels[index])


np.random.seed(0)
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(3):
    for x, y in DataLoader(Noisy(), batch_size=64, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f}")
