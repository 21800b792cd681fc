"""A small language model reads numbers that add up, line by line."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
CLASSES, TIME, SIZE = 29, 24, 32


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(CLASSES, SIZE), nn.Embedding(TIME, SIZE)
        layer = nn.TransformerEncoderLayer(SIZE, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(SIZE, CLASSES)

    def forward(self, tokens):
        found = self.embed(tokens) + self.place.weight
        mask = nn.Transformer.generate_square_subsequent_mask(TIME)
        return self.head(self.layers(found, mask=mask, is_causal=True))


model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(120):
    first, pace = torch.randint(0, CLASSES, (2, 16, 1))
    lines = (first + pace * torch.arange(TIME + 1)) % CLASSES
    tokens, labels = lines[:, :-1], lines[:, :-1]
    loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step} loss {loss.item():.4f}")
