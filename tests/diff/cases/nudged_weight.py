"""One weight is moved by 1e-7 between the backward pass and the update."""

import torch
from common import VARIANT, Net, data, loader, step
from torch import nn

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index, (inputs, labels) in enumerate(loader(data())):
    if index != 3:
        step(model, optimizer, inputs, labels)
        continue
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    if VARIANT == "b":
        with torch.no_grad():
            model.head.weight[1, 3] += 1e-6
    optimizer.step()
