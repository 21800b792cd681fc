"""An MLP with dropout: Adam, DataLoader, evaluation, a scheduler made after two steps."""

import random

import torch
import torch.nn.functional as F
from common import env, print_digest, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 32),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(32, 32),
            nn.ReLU(),
            nn.Dropout(0.3),
        )
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


def main() -> None:
    seed_everything()
    steps = env("STEPS", 20, int)
    inputs = torch.randn(160, 16)
    targets = (inputs[:, :4]).argmax(dim=1)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = None
    losses: list[float] = []
    while len(losses) < steps:
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x + 0.01 * random.random()), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == 2:
                scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
            if len(losses) >= steps:
                break
        if scheduler is not None:
            scheduler.step()
        model.eval()
        with torch.no_grad():
            print("correct", (model(inputs).argmax(dim=1) == targets).sum().item())
    print_digest(model, optimizer, losses=losses)


if __name__ == "__main__":
    main()
