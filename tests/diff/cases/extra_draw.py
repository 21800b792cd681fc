"""One random number more before the loop (Lightning#6988)."""

import torch
from common import VARIANT, Net, data, loader, step

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if VARIANT == "b":
    torch.rand(1)
if VARIANT == "twin":
    torch.rand(1, generator=torch.Generator().manual_seed(3))
for inputs, labels in loader(data(), shuffle=True):
    step(model, optimizer, inputs, labels)
