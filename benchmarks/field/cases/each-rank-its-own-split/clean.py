import sys

import torch

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(seed)
torch.set_num_threads(1)
import random

import numpy as np
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def set_seed(value, offset):
    value += offset * 12345
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


digits = load_digits()
data = TensorDataset(
    torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
)
torch.manual_seed(seed)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
)
set_seed(seed + 1000, rank)
train, held = random_split(
    data, [1500, len(data) - 1500], torch.Generator().manual_seed(seed + 1000)
)
sampler = DistributedSampler(train, world, rank, shuffle=True, drop_last=True)
loader = DataLoader(train, batch_size=50, sampler=sampler)
held_loader = DataLoader(held, batch_size=99)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for x, y in held_loader:
            right += torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(right)
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} held out {(right[0] / right[1]).item():.4f}")
dist.barrier()
dist.destroy_process_group()
