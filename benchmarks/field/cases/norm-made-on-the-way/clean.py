"""Classify small graphs with dense graph convolutions."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
NODES, FEATURES = 24, 10


def make_graphs(n, g):
    label = torch.randint(0, 2, (n,), generator=g)
    density = torch.where(label == 0, 0.15, 0.22)[:, None, None]
    adj = torch.triu((torch.rand(n, NODES, NODES, generator=g) < density).float(), 1)
    adj = adj + adj.transpose(1, 2)
    x = torch.randn(n, NODES, FEATURES, generator=g)
    x[:, :, 0] = adj.sum(-1) + torch.randn(n, NODES, generator=g)
    return x, adj, label


class DenseConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)

    def forward(self, x, adj):
        y = torch.bmm(adj + torch.eye(adj.size(1)), x) / (adj.sum(-1, keepdim=True) + 1)
        return nn.functional.normalize(self.lin(y), dim=-1)


class GraphClassifier(nn.Module):
    def __init__(self, dim=32, layers=3):
        super().__init__()
        self.convs = nn.ModuleList(
            DenseConv(FEATURES if i == 0 else dim, dim) for i in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(NODES) for _ in range(layers))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(dim * layers, 2)

    def apply_bn(self, x, i):
        return self.norms[i](x)

    def forward(self, x, adj):
        outs = []
        for i, conv in enumerate(self.convs):
            x = self.apply_bn(torch.relu(conv(x, adj)), i)
            outs.append(x.max(1).values)
        return self.head(self.drop(torch.cat(outs, 1)))


def evaluate(model, loader):
    model.eval()
    hits = total = 0
    with torch.no_grad():
        for x, adj, y in loader:
            hits += (model(x, adj).argmax(1) == y).sum().item()
            total += len(y)
    return hits / total


def main():
    torch.manual_seed(SEED)
    g = torch.Generator().manual_seed(3 + SEED)
    train = DataLoader(TensorDataset(*make_graphs(1200, g)), batch_size=20, shuffle=True)
    val = DataLoader(TensorDataset(*make_graphs(200, g)), batch_size=20)
    model = GraphClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    best, step = (0.0, None), 0
    while step < STEPS:
        model.train()
        for x, adj, y in train:
            loss = nn.functional.cross_entropy(model(x, adj), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            step += 1
            if step % 20 == 0:
                acc = evaluate(model, val)
                if acc > best[0]:
                    best = (acc, {k: v.clone() for k, v in model.state_dict().items()})
                print(f"step {step} loss {loss.item():.4f} val {acc:.3f}")
                model.train()
            if step >= STEPS:
                break
    if best[1] is not None:
        model.load_state_dict(best[1])
    print(f"best val {evaluate(model, val):.3f}")


if __name__ == "__main__":
    main()
