"""Two ranks resume at the right position of another order (accelerate#4195)."""

import torch
import torch.distributed as dist
from common import VARIANT, Net, data, load, loader, save, step
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
rows = data(128, seed=7 + dist.get_rank())
if VARIANT == "a":
    torch.manual_seed(100)
    order = torch.get_rng_state()
else:
    state = load(model.module, optimizer)
    start = state["batch"]
    torch.manual_seed(500)
    if VARIANT == "twin":
        torch.set_rng_state(state["order"])
for index, (inputs, labels) in enumerate(loader(rows, shuffle=True)):
    if index < start:
        continue
    step(model, optimizer, inputs, labels)
    if VARIANT == "a" and index == 3 and dist.get_rank() == 0:
        save(model.module, optimizer, batch=4, order=order)
dist.barrier()
dist.destroy_process_group()
