"""Sequences packed into rows, next-token prediction."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB, WIDTH = 24, 32


def packed(index: int) -> dict[str, torch.Tensor]:
    """Three counting sequences in one row; positions restart in each."""
    generator = torch.Generator().manual_seed(index)
    starts = torch.randint(0, VOCAB, (3,), generator=generator).tolist()
    ids = torch.cat([(torch.arange(8) + start) % VOCAB for start in starts])
    return {"input_ids": ids, "position_ids": torch.arange(8).repeat(3)}


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(32, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(positions)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x + y.transpose(1, 2).flatten(2))


loader = DataLoader([packed(i) for i in range(192)], 16, shuffle=True)
model = Decoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step, batch in enumerate(loader):
    ids, positions = batch["input_ids"], batch["position_ids"]
    optimizer.zero_grad()
    logits = model(ids, positions)[:, :-1]
    inside = positions[:, 1:] > 0
    loss = F.cross_entropy(logits[inside], ids[:, 1:][inside])
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
