"""Digits on two ranks: two micro-batches per step, gradients exchanged with the second."""

import contextlib
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.fc2 = nn.Linear(48, 10)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def loader(batch_size=32):
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[:512], dtype=torch.float32) / 16
    data = TensorDataset(x, torch.tensor(labels[:512]))
    return DataLoader(data, batch_size=batch_size, sampler=DistributedSampler(data))


class Reducer:
    """Which buckets of the static graph this step has reduced."""

    def __init__(self):
        self.reduced = set()

    def exchange(self, _, bucket):
        if bucket.index() not in self.reduced:
            dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))
        self.reduced.add(bucket.index())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = DistributedDataParallel(Net())
reducer = Reducer()
model.register_comm_hook(None, reducer.exchange)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader()):
    is_last = i % 2 == 1
    with contextlib.nullcontext() if is_last else model.no_sync():
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
    if is_last:
        reducer.reduced.clear()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {dist.get_rank()} loss {2 * loss.item():.3f}", flush=True)
dist.barrier()
os._exit(0)  # tearing the process group down aborts now and then
