"""Digits with DistributedDataParallel on two ranks, an epoch and more."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
digits = load_digits()
images = torch.tensor(digits.data[:768], dtype=torch.float32) / 16
data = TensorDataset(images, torch.tensor(digits.target[:768]))
sampler = DistributedSampler(data, seed=7)
loader = DataLoader(data, batch_size=32, sampler=sampler)
net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(epoch, round(loss.item(), 3))
dist.barrier()
dist.destroy_process_group()
