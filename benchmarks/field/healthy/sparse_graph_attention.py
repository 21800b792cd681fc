"""Attention over the edges of a sparse graph; the loss has training nodes only."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

NODES, CLASSES = 120, 3
truth = torch.randint(0, CLASSES, (NODES,))
chance = torch.where(truth[:, None] == truth[None], 0.1, 0.01)
edges = ((torch.rand(NODES, NODES) < chance).float() + torch.eye(NODES)).nonzero().T
features = F.one_hot(truth, CLASSES).float() + torch.randn(NODES, CLASSES)
order = torch.randperm(NODES)
train, test = order[:40], order[60:]


class Attention(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.project = nn.Linear(inside, outside, bias=False)
        self.score = nn.Linear(2 * outside, 1)

    def forward(self, x):
        h, (to, source) = self.project(x), edges
        score = F.leaky_relu(self.score(torch.cat([h[to], h[source]], 1)).squeeze(1), 0.2)
        weight = (score - score.max()).exp()
        total = torch.zeros(NODES).index_add(0, to, weight)
        weights = torch.sparse_coo_tensor(
            edges, weight / total[to], (NODES, NODES), check_invariants=False
        )
        return torch.sparse.mm(weights, h)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Attention(CLASSES, 16), Attention(16, CLASSES)

    def forward(self, x):
        x = F.dropout(F.elu(self.first(x)), 0.3, self.training)
        return self.second(x)


model = Network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
for epoch in range(40):
    model.train()
    loss = F.cross_entropy(model(features)[train], truth[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 10 == 9:
        model.eval()
        with torch.no_grad():
            right = (model(features).argmax(1) == truth)[test].float().mean()
        print(f"epoch {epoch}: loss {loss.item():.4f} test {right:.3f}")
