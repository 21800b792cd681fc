"""Fine-tune a classifier of five digits to all ten. It runs, its loss falls, and it has a bug.

The head is replaced after the optimizer was built: the optimizer goes on with the parameters of the
old head, and the new head keeps the random values that it was made with.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from train_digits import Classifier, accuracy, load_data, train


def pretrain(model: nn.Module, epochs: int) -> None:
    """Learn the digits 0 to 4."""
    batches, images, labels = load_data(num_classes=5)
    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), batches, epochs)
    print(f"five digits: accuracy {accuracy(model, images, labels):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    model = Classifier(num_classes=5)
    pretrain(model, options.epochs)

    batches, images, labels = load_data(num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.head = nn.Linear(64, 10)
    train(model, optimizer, batches, options.epochs)
    print(f"ten digits: accuracy {accuracy(model, images, labels):.3f}")


if __name__ == "__main__":
    main()
