"""The fused update rounds otherwise than the one over lists of tensors."""

import torch
from common import VARIANT, Net, data, loader, step

torch.manual_seed(0)
model = Net()
options = {"fused": True} if VARIANT == "b" else {"foreach": True}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
for inputs, labels in loader(data()):
    step(model, optimizer, inputs, labels)
