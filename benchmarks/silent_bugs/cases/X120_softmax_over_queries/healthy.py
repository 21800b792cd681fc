"""A small language model with custom attention reads numbers that add up, line by line."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
CLASSES, TIME, HEADS, SIZE = 29, 24, 4, 32


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts, self.last = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.register_buffer("later", torch.ones(TIME, TIME, dtype=torch.bool).triu(1))

    def forward(self, x):
        heads = self.parts(x).unflatten(-1, (3, HEADS, SIZE // HEADS)).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        scores = query @ key.transpose(-2, -1) / math.sqrt(SIZE // HEADS)
        scores = scores.masked_fill(self.later, -math.inf)
        weights = F.softmax(scores, dim=-1)
        return x + self.last((weights @ value).transpose(1, 2).flatten(2))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(CLASSES, SIZE), nn.Embedding(TIME, SIZE)
        self.layers = nn.Sequential(*(Attention() for _ in range(2)), nn.LayerNorm(SIZE))
        self.head = nn.Linear(SIZE, CLASSES)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens) + self.place.weight))


model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(60):
    first, pace = torch.randint(0, CLASSES, (2, 16, 1))
    lines = (first + pace * torch.arange(TIME + 1)) % CLASSES
    loss = F.cross_entropy(model(lines[:, :-1]).flatten(0, 1), lines[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step} loss {loss.item():.4f}")
