"""Parts of the programs: data, a model, a loop, and checkpoints."""

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "a"
FOLDER = sys.argv[2] if len(sys.argv) > 2 else "."
CHECKPOINT = f"{FOLDER}/checkpoint.pt"


def data(rows: int = 64, seed: int = 7) -> TensorDataset:
    """Rows of eight numbers, and the class of each."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 8, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


class Net(nn.Module):
    """Two layers, with or without dropout between them."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(16, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.relu(self.body(inputs))))


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    labels: torch.Tensor,
) -> None:
    """One update."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


def loader(dataset: Dataset, **options: Any) -> DataLoader:
    """Batches of eight rows."""
    return DataLoader(dataset, batch_size=8, **options)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, **more) -> None:
    """Write a checkpoint."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **more}
    torch.save(state, CHECKPOINT)


def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """Read it into a model and an optimizer."""
    state = torch.load(CHECKPOINT, weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state
