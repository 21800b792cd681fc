import random

import torch
from torch import nn
from torch.nn import functional as F

random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
PAD, WORDS = 0, 60


def sentence():
    words = [random.randrange(3, WORDS) for _ in range(random.randrange(4, 13))]
    return words, int(sum(word % 2 for word in words) * 2 > len(words))


def build_batch(pairs):
    longest = max(len(words) for words, _ in pairs)
    ids = [words + [PAD] * (longest - len(words)) for words, _ in pairs]
    masks = [[1] * len(words) + [0] * (longest - len(words)) for words, _ in pairs]
    labels = [label for _, label in pairs]
    return torch.tensor(ids), torch.tensor(masks), torch.tensor(labels)


class Reader(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(WORDS, width)
        self.place = nn.Embedding(16, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, 2)

    def forward(self, ids, attention_mask):
        batch, length = ids.shape
        x = self.embed(ids) + self.place(torch.arange(length))
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        allowed = attention_mask[:, None, None, :].bool()
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = self.norm(x + self.mix(mixed.transpose(1, 2).reshape(batch, length, -1)))
        return self.classify(x[:, 0])


data = [sentence() for _ in range(256)]
model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(2):
    random.shuffle(data)
    for begin in range(0, len(data), 16):
        ids, masks, labels = build_batch(data[begin : begin + 16])
        loss = F.cross_entropy(model(ids, masks), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
