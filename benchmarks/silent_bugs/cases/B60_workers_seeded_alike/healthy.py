"""Digits with random noise, loaded by two workers."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)


class NoisyDigits(Dataset):
    def __init__(self) -> None:
        digits = load_digits()
        self.images = (digits.data[:256] / 16).astype(np.float32)
        self.labels = digits.target[:256]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        noise = np.random.normal(0, 0.1, 64)
        return self.images[index] + noise.astype(np.float32), int(self.labels[index])


def seed_worker(worker_id: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)


loader = DataLoader(NoisyDigits(), 64, shuffle=True, num_workers=2, worker_init_fn=seed_worker)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, round(loss.item(), 3))
