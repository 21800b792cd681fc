"""A small language model with tied weights, resumed from a state with both names."""

import argparse
import inspect

import torch
from torch import nn
from torch.nn import functional as F


class Lm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(128, 32)
        self.mix = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 128, bias=False)
        self.tie()

    def tie(self):
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens))[0])


torch.set_num_threads(1)
torch.manual_seed(0)
text = torch.tensor([min(ord(c), 127) for c in inspect.getsource(argparse)[:40000]])
saved = {name: tensor.clone() for name, tensor in Lm().state_dict().items()}
model = Lm()
model.load_state_dict(saved, assign=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(10):
    rows = text[step * 520 : step * 520 + 520].view(8, 65)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
