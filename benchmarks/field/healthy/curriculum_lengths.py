"""A curriculum: texts become longer from stage to stage, the batch smaller."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

WORDS = 20


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 24)
        self.read = nn.GRU(24, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, ids):
        return self.head(self.read(self.embed(ids))[1][-1])


model = Counter()
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
for length, size in ((4, 64), (8, 32), (16, 16)):
    for _ in range(20):
        ids = torch.randint(0, WORDS, (size, length))
        target = ((ids < WORDS // 2).float().mean(1) > 0.5).long()
        loss = F.cross_entropy(model(ids), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"length {length}: loss {loss.item():.4f}")
