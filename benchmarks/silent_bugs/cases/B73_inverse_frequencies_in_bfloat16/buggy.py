"""Rotary attention in bfloat16."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH, VOCAB = 32, 30


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        powers = torch.arange(0, WIDTH, 2, dtype=torch.float32) / WIDTH
        self.register_buffer("inv_freq", 10000.0**-powers, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[1]).float(), self.inv_freq.float())
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat((even * cos - odd * sin, even * sin + odd * cos), -1)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rotary = nn.Embedding(VOCAB, WIDTH), Rotary()
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        q, k = self.rotary(q), self.rotary(k)
        return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True))


model = Decoder()
model.to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(12):
    ids = (torch.randint(0, VOCAB, (8, 1)) + torch.arange(25)) % VOCAB
    optimizer.zero_grad()
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
