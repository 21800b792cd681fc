"""DistributedDataParallel over gloo, under torchrun. Each rank writes its digest to ``UP_OUT``."""

import contextlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import env, print_digest, seed_everything
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train() -> None:
    inputs = torch.randn(128, 8)
    labels = (inputs.sum(dim=1) > 0).long()
    dataset = TensorDataset(inputs, labels)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for epoch in range(env("EPOCHS", 3, int)):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean.item())
    print_digest(model, optimizer, losses=losses)


def main() -> None:
    dist.init_process_group("gloo")
    seed_everything()
    out = env("OUT", None)
    if out is None:
        train()
    else:  # torchrun mixes what ranks print
        path = Path(out) / f"rank{dist.get_rank()}.txt"
        with path.open("w") as file, contextlib.redirect_stdout(file):
            train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
