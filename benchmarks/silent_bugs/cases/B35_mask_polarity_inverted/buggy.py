"""Texts of different lengths, classified with attention."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
PAD, CLASSES, WIDTH = 0, 4, 32


def sample(index: int) -> dict[str, list[int] | int]:
    """A text of 6 to 15 tokens whose class is the one of which it has most."""
    generator = torch.Generator().manual_seed(index)
    length = int(torch.randint(6, 16, (), generator=generator))
    kind = int(torch.randint(0, CLASSES, (), generator=generator))
    ids = torch.randint(1, 40, (length,), generator=generator)
    ids[::2] = kind * 10 + 1
    return {"ids": ids.tolist(), "kind": kind}


def collate(samples: list[dict]) -> dict[str, torch.Tensor]:
    longest = 16
    rows = [s["ids"] + [PAD] * (longest - len(s["ids"])) for s in samples]
    ids = torch.tensor(rows)
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "kinds": torch.tensor([s["kind"] for s in samples]),
    }


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(41, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.embed(ids)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        keep = attention_mask[:, None, None] == 0
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.out(x.transpose(1, 2).flatten(2)[:, 0])


loader = DataLoader([sample(i) for i in range(192)], 16, shuffle=True, collate_fn=collate)
model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step, batch in enumerate(loader):
    optimizer.zero_grad()
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"])
    loss = F.cross_entropy(logits, batch["kinds"])
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
