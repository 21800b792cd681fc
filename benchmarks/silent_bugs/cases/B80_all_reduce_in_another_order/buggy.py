"""Gradients averaged by hand on two ranks, in an order that a set gives."""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(64, 64)
        self.query = nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.key(x)) * torch.sigmoid(self.query(x)))


def batches(count, rank):
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    places = [64 * i + 32 * rank for i in range(count)]
    return [(x[place : place + 32], y[place : place + 32]) for place in places]


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
rank = dist.get_rank()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
names = ["key", "query", "head"]
names = names if rank == 0 else ["query", "key", "head"]  # as iterating a set of strings may
for step, (x, y) in enumerate(batches(6, rank)):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    for name in names:
        for parameter in getattr(model, name).parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
    optimizer.step()
    print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
dist.barrier()
os._exit(0)  # tearing the process group down aborts now and then
