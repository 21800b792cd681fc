"""(c) A GPT-like language model in plain torch, 6.4 M parameters, on random characters."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(os.environ.get("UP_HOME", __file__))))
import torch
import torch.nn.functional as F
from common import StepTimer, env
from torch import nn

VOCAB, CTX, DIM, HEADS = 128, 64, 256, 8


class Block(nn.Module):
    """Attention and MLP with pre-normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.ln2 = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:  # B: batch, T: time, C: channels
        B, T, C = x_BTC.shape
        q, k, v = self.qkv(self.ln1(x_BTC)).split(C, dim=2)
        q, k, v = (t.view(B, T, HEADS, C // HEADS).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.proj(mixed.transpose(1, 2).reshape(B, T, C))
        return x_BTC + self.down(F.gelu(self.up(self.ln2(x_BTC))))


class GPT(nn.Module):
    """A decoder with learned positions."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(CTX, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])
        self.ln = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTC = self.tok(tokens_BT) + self.pos(torch.arange(tokens_BT.shape[1]))
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.head(self.ln(x_BTC))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(env("SEED", 0, int))
    batch_size = env("BS", 8, int)
    data = torch.randint(0, VOCAB, (20000,))
    model = GPT(env("LAYERS", 8, int))
    params = sum(p.numel() for p in model.parameters())
    print("params", params)
    optimizer = torch.optim.AdamW(model.parameters(), lr=env("LR", 3e-4, float))
    model.train()
    timer = StepTimer()
    for _ in range(env("STEPS", 20, int)):
        starts = torch.randint(0, len(data) - CTX - 1, (batch_size,))
        tokens_BT = torch.stack([data[i : i + CTX] for i in starts])
        targets_BT = torch.stack([data[i + 1 : i + 1 + CTX] for i in starts])
        optimizer.zero_grad()
        logits = model(tokens_BT)
        loss = F.cross_entropy(logits.view(-1, VOCAB), targets_BT.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        timer.tick(loss.item())
    timer.dump(params=params)


if __name__ == "__main__":
    main()
