"""The model stays in evaluation mode after an evaluation."""

import torch
from common import VARIANT, Net, data, loader, step

torch.manual_seed(0)
model = Net(drop=0.2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index, (inputs, labels) in enumerate(loader(data())):
    step(model, optimizer, inputs, labels)
    if index == 3:
        model.eval()
        with torch.no_grad():
            model(inputs)
        if VARIANT != "b":
            model.train()
