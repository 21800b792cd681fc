"""Four micro-batches against one batch: averaged, or added up (transformers#34191)."""

import torch
from common import VARIANT, Net, data
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parts = 1 if VARIANT == "a" else 4
factor = {"a": 1.0, "b": 1.0, "twin": 0.25}[VARIANT]
for index, (inputs, labels) in enumerate(DataLoader(data(128), batch_size=32 // parts)):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    (loss * factor).backward()
    if (index + 1) % parts == 0:
        optimizer.step()
        optimizer.zero_grad()
