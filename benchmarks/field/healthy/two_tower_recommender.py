"""Two towers with sparse bags of features, in-batch negatives, two optimizers."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

USERS, ITEMS, WIDTH = 200, 80, 16


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = nn.EmbeddingBag(ITEMS, WIDTH, mode="mean", sparse=True)
        self.items = nn.Embedding(ITEMS, WIDTH, sparse=True)
        self.user_net = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.item_net = nn.Linear(WIDTH, WIDTH)

    def forward(self, bags, offsets, items):
        users = self.user_net(self.history(bags, offsets))
        return users @ self.item_net(self.items(items)).T


taste = torch.randint(0, 8, (USERS,))
popular = torch.rand(ITEMS).softmax(0).log()
model = Towers()
sparse = torch.optim.SparseAdam([model.history.weight, model.items.weight], lr=1e-2)
dense = torch.optim.Adam([*model.user_net.parameters(), *model.item_net.parameters()], lr=2e-3)
for step in range(40):
    users = torch.randint(0, USERS, (32,))
    seen = [8 * torch.randint(0, 10, (int(torch.randint(2, 6, ())),)) + taste[u] for u in users]
    offsets = torch.tensor([0, *[len(s) for s in seen[:-1]]]).cumsum(0)
    bought = 8 * torch.randint(0, 10, (32,)) + taste[users]
    scores = model(torch.cat(seen), offsets, bought) - popular[bought][None]
    same = (bought[:, None] == bought[None]) & ~torch.eye(32, dtype=torch.bool)
    loss = F.cross_entropy(scores.masked_fill(same, -1e9), torch.arange(32))
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
