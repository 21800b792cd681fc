"""Train a small GPT on characters of the texts of scikit-learn, in a plain loop.

The loss falls far below what is possible, and the sample at the end is nonsense: see README.md.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = 32
WIDTH = 48
HEADS = 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        mask = torch.tril(torch.ones(BLOCK, BLOCK), diagonal=1)
        self.register_buffer("mask", mask.bool())

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        y = scores.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


@torch.no_grad()
def sample(model: GPT, ids: Tensor, length: int) -> Tensor:
    model.eval()
    for _ in range(length):
        logits = model(ids[:, -BLOCK:])[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.softmax(dim=-1), 1)], dim=1)
    return ids[0]


def main() -> None:
    torch.manual_seed(0)
    loaders = (load_breast_cancer, load_diabetes, load_digits, load_wine)
    text = "\n".join(load().DESCR for load in loaders)
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])

    model = GPT(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(301):
        starts = torch.randint(len(ids) - BLOCK - 1, (16,))
        x = torch.stack([ids[i : i + BLOCK] for i in starts])
        y = torch.stack([ids[i + 1 : i + BLOCK + 1] for i in starts])
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.2f}")
    written = sample(model, ids[None, :BLOCK], 40)
    print("sample:", repr("".join(letters[i] for i in written)))


if __name__ == "__main__":
    main()
