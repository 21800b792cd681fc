"""Each rank keeps batch norm statistics of its samples (broadcast_buffers=False)."""

import torch
import torch.distributed as dist
from common import VARIANT, data, loader, step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
wrapped = DistributedDataParallel(model, broadcast_buffers=VARIANT != "b")
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
for inputs, labels in loader(data(64, seed=7 + dist.get_rank())):
    step(wrapped, optimizer, inputs, labels)
dist.barrier()
dist.destroy_process_group()
