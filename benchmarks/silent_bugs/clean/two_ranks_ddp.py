"""DistributedDataParallel on two ranks: no_sync windows, batch normalization, a sharded sampler."""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WINDOW = 2


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data[:512], dtype=torch.float32) / 16
    data = TensorDataset(x, torch.tensor(digits.target[:512]))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    net = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(rank)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for index, (images, labels) in enumerate(loader):
            is_last = (index + 1) % WINDOW == 0
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = F.cross_entropy(model(images), labels) / WINDOW
                loss.backward()
            if is_last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(epoch, round(total.item(), 3))
    dist.barrier()
    os._exit(0)


main()
