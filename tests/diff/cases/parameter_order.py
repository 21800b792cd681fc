"""An optimizer over a set of parameters loads the states of others (alf#891, Lightning#17025)."""

import torch
from common import VARIANT, data, load, loader, save, step
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Tanh())))
parameters = list(model.parameters())
if VARIANT == "b":  # one of the orders that list(set(parameters)) has
    parameters = [*parameters[4:], *parameters[:4]]
optimizer = torch.optim.AdamW(parameters, lr=0.01)
start = 0
if VARIANT != "a":
    load(model, optimizer)
    start = 1
for epoch in range(start, 3):
    for inputs, labels in loader(data()):
        step(model, optimizer, inputs, labels)
    if VARIANT == "a" and epoch == 0:
        save(model, optimizer)
