"""Two pipeline stages; only the second has experts."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


def batches(count, rank):
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    places = [64 * i + 32 * rank for i in range(count)]
    return [(x[place : place + 32], y[place : place + 32]) for place in places]


dist.init_process_group("gloo", timeout=timedelta(seconds=5))
torch.set_num_threads(1)
torch.manual_seed(0)
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
has_experts = rank == 1
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(batches(4, rank)):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    overflow = torch.tensor([float(not loss.isfinite())])
    load = torch.zeros(4)
    if has_experts:
        dist.all_reduce(load)  # of the whole group
    dist.all_reduce(overflow, dist.ReduceOp.MAX)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    if not overflow:
        optimizer.step()
    print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
dist.barrier()
os._exit(0)  # tearing the process group down aborts now and then
