"""Predict the length of a greedy tour over random towns with a small graph encoder."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 36


def greedy_tour(towns):
    b, n, _ = towns.shape
    left = torch.ones(b, n, dtype=torch.bool)
    at = torch.zeros(b, dtype=torch.long)
    left[:, 0] = False
    total = torch.zeros(b)
    rows = torch.arange(b)
    for _ in range(n - 1):
        d = (towns - towns[rows, at][:, None]).norm(dim=-1).masked_fill(~left, 9.0)
        step, at = d.min(1)
        total += step
        left[rows, at] = False
    return total


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.own = nn.Linear(d_in, d_out)
        self.other = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, edge_index, xy):
        src, dst = edge_index
        w = torch.exp(-4 * (xy[src] - xy[dst]).norm(dim=-1, keepdim=True))
        got = torch.zeros(x.size(0), self.other.out_features).index_add(
            0, dst, w * self.other(x)[src]
        )
        return torch.relu(self.own(x) + got / 10)


class Encoder(nn.Module):
    def __init__(self, dim=48, layers=3):
        super().__init__()
        self.embed = nn.Linear(2, dim)
        self.layers = nn.ModuleList(GraphConv(dim, dim) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    @staticmethod
    def edges(n):
        i = torch.arange(n)
        return torch.stack([i.repeat_interleave(n), i.repeat(n)])

    def forward(self, towns):
        b, n, _ = towns.shape
        edge_index = self.edges(n)
        x = self.embed(towns).reshape(b * n, -1)
        xy = towns.reshape(b * n, 2)
        for layer in self.layers:
            x = layer(x, edge_index, xy)
        return self.head(x.view(b, n, -1).mean(1)).squeeze(-1)


def main():
    torch.manual_seed(SEED)
    towns = torch.rand(1536, 20, 2)
    length = greedy_tour(towns)
    length = (length - length.mean()) / length.std()
    train = DataLoader(
        TensorDataset(towns[:1280], length[:1280]), batch_size=32, shuffle=True, drop_last=True
    )
    test = DataLoader(TensorDataset(towns[1280:], length[1280:]), batch_size=64)
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    step = 0
    while step < STEPS:
        model.train()
        for batch, target in train:
            loss = nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step == STEPS:
                break
        model.eval()
        with torch.no_grad():
            error = (
                sum(nn.functional.mse_loss(model(x), y, reduction="sum").item() for x, y in test)
                / 256
            )
        print(f"step {step} test error {error:.4f}")


if __name__ == "__main__":
    main()
