"""Tokens are routed to four experts on two ranks; the expert's load is summed."""

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
model = nn.Linear(64, 4)
router = nn.Linear(64, 4)
optimizer = torch.optim.SGD([*model.parameters(), *router.parameters()], lr=0.1)
for step, (x, y) in enumerate(batches(4, rank)):
    optimizer.zero_grad()
    scores = router(x).softmax(1)
    chosen = scores.argmax(1)
    capacity = torch.tensor(int(torch.bincount(chosen, minlength=4).max()))
    slots = torch.zeros(int(capacity))
    slots[: int((chosen == 0).sum())] = 1
    dist.all_reduce(slots)
    loss = F.cross_entropy(model(x) * scores.max(1).values[:, None], y % 4) + 0.01 * slots.mean()
    loss.backward()
    for parameter in [*model.parameters(), *router.parameters()]:
        dist.all_reduce(parameter.grad)
    optimizer.step()
    print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
dist.barrier()
os._exit(0)  # tearing the process group down aborts now and then
