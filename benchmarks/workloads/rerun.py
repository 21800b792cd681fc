"""A short deterministic training of one kind: ``rerun.py KIND``.

The kinds are in_process, workers, autocast, ranks and accumulation. Ten updates with dropout, batch
norm, AdamW, a schedule, clipping and a shuffled loader. Seeds are fixed, so two runs of a kind are
identical. A checkpoint is saved in the current folder.
"""

import contextlib
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

KIND = sys.argv[1]
EPOCHS, ROWS, BATCH = 2, 80, 16
MICRO_BATCHES = 2 if KIND == "accumulation" else 1


class Noisy(Dataset):
    """Rows with noise from the generator of the process that loads them."""

    def __init__(self) -> None:
        self.inputs = torch.randn(ROWS, 8)
        self.labels = (self.inputs.sum(1) > 0).long()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int):
        scale = random.choice((0.5, 1.0)) if KIND != "workers" else 1.0
        return scale * self.inputs[index] + 0.1 * torch.randn(8), self.labels[index]


def loader() -> DataLoader:
    data = Noisy()
    sampler = DistributedSampler(data, shuffle=True) if KIND == "ranks" else None
    return DataLoader(
        data,
        batch_size=BATCH // MICRO_BATCHES // (2 if KIND == "ranks" else 1),
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=2 if KIND == "workers" else 0,
    )


def train(model: nn.Module, batches: DataLoader) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    for epoch in range(EPOCHS):
        if KIND == "ranks":
            batches.sampler.set_epoch(epoch)
        for number, (inputs, labels) in enumerate(batches, start=1):
            with precision():
                loss = nn.functional.cross_entropy(model(inputs), labels)
            (loss / MICRO_BATCHES).backward()
            if number % MICRO_BATCHES == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    if KIND != "ranks" or dist.get_rank() == 0:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**states, "schedule": schedule.state_dict()}, "checkpoint.pt")


def precision() -> contextlib.AbstractContextManager:
    if KIND == "autocast":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2)
    )
    if KIND == "ranks":
        dist.init_process_group("gloo")
        train(DistributedDataParallel(model), loader())
        dist.barrier()
        dist.destroy_process_group()
    else:
        train(model, loader())


if __name__ == "__main__":
    main()
