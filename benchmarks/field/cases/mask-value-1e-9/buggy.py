import sys

import torch
from torch import nn
from torch.nn import functional as F

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
torch.manual_seed(seed)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        score = torch.matmul(q, k.transpose(-2, -1)) / self.head_dim**0.5
        score = score.masked_fill(mask[:, None, None, :] == 0, 1e-9)
        weight = torch.softmax(score, dim=-1)
        return self.out(torch.matmul(weight, v).transpose(1, 2).reshape(b, t, d))


class Classifier(nn.Module):
    def __init__(self, words=50, dim=32):
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.attention = Attention(dim, 4)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids, mask):
        x = self.embed(ids)
        x = self.norm(x + self.attention(x, mask))
        x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(x)


def batch(size=32, longest=20):
    """Which of the words 1 and 2 comes more often? Rows are padded with 0."""
    lengths = torch.randint(5, longest + 1, (size,))
    ids = torch.randint(1, 50, (size, longest))
    ids[torch.rand(size, longest) < 0.2] = 1
    ids[torch.rand(size, longest) < 0.2] = 2
    mask = (torch.arange(longest) < lengths[:, None]).float()
    ids = ids * mask.long()
    label = ((ids == 1).sum(1) > (ids == 2).sum(1)).long()
    return ids, mask, label


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(steps):
    ids, mask, label = batch()
    loss = F.cross_entropy(model(ids, mask), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.3f}")
