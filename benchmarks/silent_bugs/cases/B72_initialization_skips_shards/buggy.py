"""Sharded layers are initialized with a small deviation after they were sharded."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def initialize(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.dim() > 1 and not isinstance(parameter, DTensor):
            nn.init.normal_(parameter, std=0.02)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    fully_shard(model, mesh=mesh)
    initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    for step in range(10):
        picked = torch.randint(0, len(x), (32,))
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0 and rank == 0:
            print(step, round(loss.item(), 3))
    dist.barrier()
    os._exit(0)


main()
