"""Data parallel by hand on two ranks, each with a separate generator."""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= dist.get_world_size()


dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
torch.manual_seed(1234 + rank)  # other augmentation on every rank
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32)[rank::2] / 16, torch.tensor(labels)[rank::2]
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for step in range(8):
    rows = slice(32 * step, 32 * step + 32)
    noisy = x[rows] + 0.05 * torch.randn(32, 64)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(noisy), y[rows])
    loss.backward()
    average_gradients(model)
    optimizer.step()
    print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
dist.barrier()
os._exit(0)  # tearing the process group down aborts now and then
