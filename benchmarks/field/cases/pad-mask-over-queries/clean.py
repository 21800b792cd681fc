"""A small transformer encoder, written by hand, that classifies padded sequences."""

import math
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 50
PAD = 0


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        score = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        score = score.masked_fill(mask == 0, -10000)
        y = torch.softmax(score, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        x = x + self.attention(self.n1(x), mask)
        return x + self.ffn(self.n2(x))


class Encoder(nn.Module):
    def __init__(self, vocab=50, dim=32, heads=4, depth=2, width=32):
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(vocab, dim, padding_idx=PAD),
            nn.Embedding(width, dim),
        )
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 4)

    def make_mask(self, ids):
        return (ids != PAD).unsqueeze(1).unsqueeze(2)

    def forward(self, ids):
        mask = self.make_mask(ids)
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x)[:, 0])


def make_data(n):
    g = torch.Generator().manual_seed(11 + SEED)
    rows = []
    for _ in range(n):
        length = int(torch.randint(4, 24, (1,), generator=g))
        ids = torch.randint(1, 50, (length,), generator=g)
        rows.append((ids, int(ids.max() // 13)))
    return rows


def collate(batch):
    ids = nn.utils.rnn.pad_sequence([x for x, _ in batch], batch_first=True, padding_value=PAD)
    return ids, torch.tensor([y for _, y in batch])


def main():
    torch.manual_seed(SEED)
    loader = DataLoader(
        make_data(800), batch_size=16, shuffle=True, collate_fn=collate, drop_last=True
    )
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    model.train()
    while step < STEPS:
        for ids, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.3f}")
            if step >= STEPS:
                break


if __name__ == "__main__":
    main()
