"""A frozen language model with trained prefixes of keys and values."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

WORDS, WIDTH, HEADS, PREFIX = 30, 32, 4, 5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.prefix = nn.Parameter(0.5 * torch.randn(2, HEADS, PREFIX, WIDTH // HEADS))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        before_k, before_v = (p.expand(batch, -1, -1, -1) for p in self.prefix)
        k, v = torch.cat([before_k, k], 2), torch.cat([before_v, v], 2)
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        seen = torch.cat([torch.ones(length, PREFIX, dtype=torch.bool), seen], 1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x))


def texts(step, count=16):
    return (torch.randint(0, WORDS, (count, 1)) + step * torch.arange(11)) % WORDS


def fit(parameters, step, steps):
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for _ in range(steps):
        ids = texts(step)
        scores = model(ids[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


model = Language()
print(f"first task: loss {fit(model.parameters(), 1, 25):.4f}")
model.requires_grad_(False)
prefixes = [layer.prefix.requires_grad_(True) for layer in model.layers]
print(f"second task: loss {fit(prefixes, 3, 25):.4f}")
