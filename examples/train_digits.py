"""Train a small classifier on the digits data set. A healthy run: the reference of `make demo`."""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

TRAIN_ROWS = 1500


class Classifier(nn.Module):
    """Features, then a head that can be exchanged for another number of classes."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64)
        )
        self.head = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.relu(self.features(images)))


def load_data(num_classes: int) -> tuple[DataLoader[tuple[Tensor, ...]], Tensor, Tensor]:
    """Batches to train on, images and labels to test with, of the first `num_classes` digits."""
    images, labels = load_digits(n_class=num_classes, return_X_y=True)
    x = torch.tensor(images / 16.0, dtype=torch.float32)
    y = torch.tensor(labels, dtype=torch.long)
    split = min(TRAIN_ROWS, int(0.8 * len(x)))
    batches = DataLoader(TensorDataset(x[:split], y[:split]), batch_size=64, shuffle=True)
    return batches, x[split:], y[split:]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: DataLoader[tuple[Tensor, ...]],
    epochs: int,
) -> None:
    for epoch in range(epochs):
        model.train()
        for images, labels in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    batches, images, labels = load_data(num_classes=10)
    model = Classifier(num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, batches, options.epochs)
    print(f"accuracy {accuracy(model, images, labels):.3f}")


if __name__ == "__main__":
    main()
