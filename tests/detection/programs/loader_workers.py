"""A DataLoader whose two workers, forked or spawned (``UP_CONTEXT``), augment at random."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from common import env, print_digest, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self) -> None:
        self.inputs = torch.randn(96, 8)
        self.labels = (self.inputs.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.randn(8) * 0.1 + random.random() * 0.1 + float(np.random.rand()) * 0.1
        return F.relu(self.inputs[index] + noise), self.labels[index]


def main() -> None:
    seed_everything()
    context = env("CONTEXT", "fork")
    loader = DataLoader(
        Noisy(), batch_size=16, shuffle=True, num_workers=2, multiprocessing_context=context
    )
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    model.train()
    for _ in range(env("EPOCHS", 2, int)):
        for inputs, labels in loader:
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print_digest(model, optimizer, losses=losses)


if __name__ == "__main__":
    main()
