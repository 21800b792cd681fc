"""Texts packed into rows; a block mask and positions that begin again keep them apart."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

WORDS, WIDTH, HEADS, ROW = 24, 32, 4, 24


def pack(count):
    rows, places, owners, labels = [], [], [], []
    for _ in range(count):
        ids, place, owner, label, number = [], [], [], [], 0
        while len(ids) < ROW:
            length = min(int(torch.randint(4, 10, ())), ROW - len(ids))
            text = (torch.randint(0, WORDS, ()) + torch.arange(length)) % WORDS
            ids += text.tolist()
            place += range(length)
            owner += [number] * length
            label += [*text[1:].tolist(), -100]
            number += 1
        rows.append(ids), places.append(place), owners.append(owner), labels.append(label)
    return (torch.tensor(x) for x in (rows, places, owners, labels))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(ROW, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))

    def forward(self, ids, place, owner):
        x = self.embed(ids) + self.place(place)
        q, k, v = self.qkv(self.norm(x)).view(*ids.shape, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = (owner[:, :, None] == owner[:, None]) & torch.ones(ROW, ROW, dtype=torch.bool).tril()
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None])
        return self.head(x + self.out(mixed.transpose(1, 2).flatten(2)))


model = Language()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(30):
    ids, place, owner, target = pack(8)
    loss = F.cross_entropy(model(ids, place, owner).flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
