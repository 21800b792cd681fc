"""Link prediction on a protein-like graph: node embeddings trained on edges, AUC on held-out edges."""

import sys

import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 50
NODES = 400


def make_graph(g):
    z = torch.randn(NODES, 6, generator=g)
    score = z @ z.T + 1.5 * torch.randn(NODES, NODES, generator=g)
    score = torch.triu(score + score.T, 1)
    top = score.flatten().topk(4000).indices
    pairs = torch.stack([top // NODES, top % NODES])
    return torch.cat([pairs, pairs.flip(0)], 1)


def split(edges):
    once = edges[:, edges[0] < edges[1]]
    order = torch.randperm(once.size(1))
    cut = once.size(1) // 5
    test, rest = once[:, order[:cut]], once[:, order[cut:]]
    train = torch.cat([rest, rest.flip(0)], 1)
    return train, test


class NodeEmbedding(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.nodes = nn.Embedding(NODES, dim)
        self.mix = nn.Linear(dim, dim, bias=False)
        nn.init.normal_(self.nodes.weight, std=0.3)

    def forward(self, u, v):
        a, b = self.nodes(u), self.nodes(v)
        return ((a + torch.tanh(self.mix(a))) * (b + torch.tanh(self.mix(b)))).sum(-1)


def random_pairs(n, known):
    u, v = torch.randint(0, NODES, (2, 2 * n))
    keep = torch.tensor([(a, b) not in known and a != b for a, b in zip(u.tolist(), v.tolist())])
    return u[keep][:n], v[keep][:n]


def main():
    torch.manual_seed(SEED)
    edges = make_graph(torch.Generator().manual_seed(9 + SEED))
    known = set(zip(*edges.tolist()))
    train, test = split(edges)
    loader = DataLoader(
        TensorDataset(train[0], train[1]), batch_size=256, shuffle=True, drop_last=True
    )
    test_no = random_pairs(test.size(1), known)
    model = NodeEmbedding()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = 0
    while step < STEPS:
        model.train()
        for u, v in loader:
            nu, nv = random_pairs(len(u), known)
            score = model(torch.cat([u, nu]), torch.cat([v, nv]))
            label = torch.cat([torch.ones(len(u)), torch.zeros(len(nu))])
            loss = nn.functional.binary_cross_entropy_with_logits(score, label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step == STEPS:
                break
        model.eval()
        with torch.no_grad():
            yes, no = model(test[0], test[1]), model(*test_no)
        auc = roc_auc_score([1] * len(yes) + [0] * len(no), torch.cat([yes, no]).numpy())
        print(f"step {step} test auc {auc:.4f}")


if __name__ == "__main__":
    main()
