"""The generator of dropout is not restored at the end of an epoch (transformers#17032)."""

import torch
from common import VARIANT, Net, data, load, loader, save, step

torch.manual_seed(0)
model = Net(drop=0.3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
if VARIANT != "a":
    state = load(model, optimizer)
    start = state["epoch"]
    if VARIANT == "twin":
        torch.set_rng_state(state["rng"])
for epoch in range(start, 3):
    order = torch.Generator().manual_seed(epoch)
    for inputs, labels in loader(data(), shuffle=True, generator=order):
        step(model, optimizer, inputs, labels)
    if VARIANT == "a" and epoch == 0:
        save(model, optimizer, epoch=1, rng=torch.get_rng_state())
