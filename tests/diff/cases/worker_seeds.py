"""NumPy draws alike in all workers, and otherwise with another number of workers."""

import numpy as np
import torch
from common import VARIANT, Net, data, loader, step
from torch.utils.data import Dataset


class Noisy(Dataset):
    """Adds noise to each row: from the worker's generator, or from one of the row."""

    def __init__(self) -> None:
        self.rows = data()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, label = self.rows[index]
        generator = np.random if FROM_WORKER else np.random.default_rng(index)
        return inputs + torch.tensor(generator.normal(size=8), dtype=torch.float32), label


FROM_WORKER = "per-worker" in VARIANT
np.random.seed(0)
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
workers = 4 if VARIANT.endswith("4") else 2
for inputs, labels in loader(Noisy(), num_workers=workers):
    step(model, optimizer, inputs, labels)
