"""Digits on two ranks, with a schedule."""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
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
    sampler = DistributedSampler(data, shuffle=True, seed=0)
    return DataLoader(data, batch_size=batch_size, sampler=sampler)


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = DDP(Net())
batches = loader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
rank = dist.get_rank()
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
print(f"rank {rank} loss {loss.item():.3f}", flush=True)
dist.barrier()
os._exit(0)  # tearing the process group down aborts now and then
