"""A target network follows what each rank sees, not the trained network (alf#1475)."""

import copy

import torch
import torch.distributed as dist
from common import VARIANT, Net, data, loader, step
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Net()


class Target(Net):
    """A slow copy."""


target = Target()
target.load_state_dict(copy.deepcopy(model.state_dict()))
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
for inputs, labels in loader(data(64, seed=7 + dist.get_rank())):
    with torch.no_grad():
        target(inputs)
    step(wrapped, optimizer, inputs, labels)
    rate = inputs.std().item() / 10 if VARIANT == "b" else 0.1
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), model.parameters()):
            slow.lerp_(fast, rate)
dist.barrier()
dist.destroy_process_group()
