import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
torch.set_num_threads(1)
BATCH = 12


def gather(x):
    parts = [torch.zeros_like(x) for _ in range(world)]
    dist.all_gather(parts, x.detach().contiguous())
    parts[rank] = x
    return torch.cat(parts)


def simclr_loss(z, indexes, temperature=0.2):
    z = F.normalize(z, dim=1)
    everybody, all_indexes = gather(z), gather(indexes)
    similarity = torch.exp(z @ everybody.T / temperature)
    positive = indexes[:, None] == all_indexes[None, :]
    negative = ~positive
    positive.fill_diagonal_(False)
    taken = (similarity * positive).sum(1)
    return -torch.log(taken / (taken + (similarity * negative).sum(1))).mean()


net = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(100 + rank)
for step in range(25):
    x = torch.randn(BATCH, 20)
    views = torch.cat([x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)])
    indexes = (torch.arange(BATCH) + rank * BATCH).repeat(2)
    loss = simclr_loss(net(views), indexes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"rank {rank} step {step}: loss {loss.item():.4f}", flush=True)
dist.barrier()
os._exit(0)
