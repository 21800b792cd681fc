"""A layer that DistributedDataParallel does not hold drifts between ranks (pytorch#128949)."""

import torch
import torch.distributed as dist
from common import VARIANT, Net, data, loader
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
body = Net()
scale = nn.Linear(2, 2)
wrapped = DistributedDataParallel(nn.Sequential(body, scale) if VARIANT != "b" else body)
optimizer = torch.optim.SGD([*body.parameters(), *scale.parameters()], lr=0.1)
for inputs, labels in loader(data(64, seed=7 + dist.get_rank())):
    optimizer.zero_grad()
    outputs = wrapped(inputs) if VARIANT != "b" else scale(wrapped(inputs))
    nn.functional.cross_entropy(outputs, labels).backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
