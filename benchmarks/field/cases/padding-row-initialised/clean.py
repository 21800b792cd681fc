import sys

import torch
from torch import nn
from torch.nn import functional as F

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
torch.manual_seed(seed)
torch.set_num_threads(1)


class Bag(nn.Module):
    def __init__(self, words=40, dim=24):
        super().__init__()
        self.embed = nn.Embedding(words, dim, padding_idx=0)
        self.body = nn.Linear(dim, 32)
        self.head = nn.Linear(32, 2)
        self.reset()

    def reset(self):
        nn.init.normal_(self.embed.weight, std=0.5)
        with torch.no_grad():
            self.embed.weight[self.embed.padding_idx].zero_()

    def forward(self, ids):
        return self.head(F.relu(self.body(self.embed(ids).sum(1))))


def batch(size=32, longest=30):
    lengths = torch.randint(3, longest + 1, (size,))
    ids = torch.randint(1, 40, (size, longest))
    ids[torch.arange(longest) >= lengths[:, None]] = 0
    return ids, ((ids > 20).sum(1) > lengths / 2).long()


model = Bag()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(steps):
    ids, label = batch()
    loss = F.cross_entropy(model(ids), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.3f}")
