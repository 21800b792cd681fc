"""A causal language model with tied weights, clipping, and decay for matrices only."""

import torch
import torch.nn.functional as F
from torch import nn

TEXT = "she sells sea shells by the sea shore and the shells she sells are sea shells. " * 30
VOCAB = sorted(set(TEXT))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        drop = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class LM(nn.Module):
    def __init__(self, vocab: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.place = nn.Embedding(64, width)
        self.blocks = nn.Sequential(Block(width, 2), Block(width, 2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.tensor([VOCAB.index(c) for c in TEXT])
    model = LM(len(VOCAB))
    named = list(model.named_parameters())
    decay = [p for n, p in named if p.dim() > 1 and "embed" not in n and "place" not in n]
    rest = [p for n, p in named if p.dim() < 2 or "embed" in n or "place" in n]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    for step in range(20):
        starts = torch.randint(0, len(data) - 33, (8,)).tolist()
        rows = torch.stack([data[s : s + 33] for s in starts])
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))
    model.eval()
    with torch.no_grad():
        ids = data[:8].unsqueeze(0)
        for _ in range(8):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(dim=-1)], dim=1)
    print("".join(VOCAB[i] for i in ids[0].tolist()))


main()
