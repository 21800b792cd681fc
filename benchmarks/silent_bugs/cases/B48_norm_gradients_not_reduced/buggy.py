"""A tensor-parallel model on two ranks, with its layer norm in sequence parallel."""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Gather(torch.autograd.Function):
    """Rows of all ranks; of the gradient each rank gets its own rows."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad := grad.contiguous())
        return grad.chunk(2)[dist.get_rank()]


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x := x.clone())
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Net(nn.Module):
    """Tensor parallel: each rank holds a half of the hidden units."""

    def __init__(self, rank):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        torch.manual_seed(1 + rank)
        self.up = nn.Linear(64, 16, bias=False)
        self.down = nn.Linear(16, 10, bias=False)
        self.bias = nn.Parameter(torch.zeros(10))

    def forward(self, x):
        own = self.norm(x.chunk(2)[dist.get_rank()])  # sequence parallel: half of the rows
        hidden = F.relu(self.up(Gather.apply(own)))
        return Sum.apply(self.down(hidden)) + self.bias


def batches(count):
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    return [(x[32 * i : 32 * i + 32], y[32 * i : 32 * i + 32]) for i in range(count)]


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
rank = dist.get_rank()
model = Net(rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(batches(6)):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
dist.barrier()
os._exit(0)  # tearing the process group down aborts now and then
