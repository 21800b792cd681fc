"""The weights of a checkpoint are rounded to bfloat16 (speculators#1027)."""

import torch
from common import CHECKPOINT, VARIANT, Net, data, loader, step

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
if VARIANT != "a":
    state = torch.load(CHECKPOINT, weights_only=False)
    weights = state["model" if VARIANT == "twin" else "rounded"]
    model.load_state_dict(weights)
    optimizer.load_state_dict(state["optimizer"])
    start = 1
for epoch in range(start, 3):
    for inputs, labels in loader(data()):
        step(model, optimizer, inputs, labels)
    if VARIANT == "a" and epoch == 0:
        exact = model.state_dict()
        rounded = {name: value.bfloat16() for name, value in exact.items()}
        state = {"rounded": rounded, "model": exact, "optimizer": optimizer.state_dict()}
        torch.save(state, CHECKPOINT)
