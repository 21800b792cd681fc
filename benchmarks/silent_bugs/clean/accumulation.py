"""Gradients of four micro-batches are accumulated; the last window of an epoch is shorter."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WINDOW = 4


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data[:448], dtype=torch.float32) / 16
    y = torch.tensor(digits.target[:448])
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(3):
        for index, (images, labels) in enumerate(loader):
            left = len(loader) - index // WINDOW * WINDOW
            loss = F.cross_entropy(model(images), labels) / min(WINDOW, left)
            loss.backward()
            if (index + 1) % WINDOW == 0 or index + 1 == len(loader):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        print(epoch, round(loss.item(), 3))


main()
