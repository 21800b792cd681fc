"""The state of the scheduler is missing in the checkpoint."""

import torch
from common import VARIANT, Net, data, load, loader, save, step

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 0.9**number)
start = 0
if VARIANT != "a":
    state = load(model, optimizer)
    start = 1
    if VARIANT == "twin":
        scheduler.load_state_dict(state["scheduler"])
    else:
        scheduler.step(0)
for epoch in range(start, 3):
    for inputs, labels in loader(data()):
        step(model, optimizer, inputs, labels)
        scheduler.step()
    if VARIANT == "a" and epoch == 0:
        save(model, optimizer, scheduler=scheduler.state_dict())
