"""A tiny GPT with tied embeddings: AdamW in two groups, accumulation, clipping, a schedule."""

import torch
import torch.nn.functional as F
from common import env, print_digest, seed_everything
from torch import nn

VOCAB, CTX, DIM, HEADS, MICROBATCHES = 32, 16, 32, 4, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.attention = nn.MultiheadAttention(DIM, HEADS, dropout=0.1, batch_first=True)
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCAB, DIM)
        self.position = nn.Embedding(CTX, DIM)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        mask = torch.full((tokens.shape[1], tokens.shape[1]), float("-inf")).triu(1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def make_optimizer(model: TinyGPT) -> torch.optim.Optimizer:
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=env("LR", 3e-3, float))


def main() -> None:
    seed_everything()
    bug = env("BUG", "none")
    data = torch.randint(0, VOCAB, (2000,))
    model = TinyGPT()
    optimizer = make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
    model.train()
    losses: list[float] = []
    for _ in range(env("STEPS", 20, int)):
        total = 0.0
        for _ in range(MICROBATCHES):
            starts = torch.randint(0, len(data) - CTX - 1, (4,))
            tokens = torch.stack([data[i : i + CTX] for i in starts])
            following = torch.stack([data[i + 1 : i + 1 + CTX] for i in starts])
            loss = F.cross_entropy(model(tokens).flatten(0, 1), following.flatten()) / MICROBATCHES
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if bug != "no_zero_grad":
            optimizer.zero_grad()
        losses.append(total)
    print_digest(model, optimizer, scheduler, losses=losses)


if __name__ == "__main__":
    main()
