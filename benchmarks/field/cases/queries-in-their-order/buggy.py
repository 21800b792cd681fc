import os
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

FOLDER = tempfile.mkdtemp()

WAY, SHOT, QUERY = 5, 1, 1


class Classes:
    """Vector classes with noisy members."""

    def __init__(self, seed, classes, dim=16):
        g = torch.Generator().manual_seed(seed)
        self.centers = torch.randn(classes, dim, generator=g)
        self.g = g

    def episode(self, batch):
        xs, ys, qs, ts = [], [], [], []
        for _ in range(batch):
            chosen = torch.randperm(len(self.centers), generator=self.g)[:WAY]
            center = self.centers[chosen]
            support = center + 1.6 * torch.randn(center.shape, generator=self.g)
            query = center + 1.6 * torch.randn(center.shape, generator=self.g)
            label = torch.arange(WAY)
            xs.append(support)
            ys.append(label)
            qs.append(query)
            ts.append(label)
        return torch.stack(xs), torch.stack(ys), torch.stack(qs), torch.stack(ts)


class EdgeNet(nn.Module):
    """Embeds the nodes of an episode, then refines the matrix of edges."""

    def __init__(self, dim=16, width=32):
        super().__init__()
        self.nodes = 2 * WAY
        self.embed = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width))
        self.edge = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, 16, 1), nn.LeakyReLU(), nn.Conv2d(16, 1, 1))
            for c in (width, width)
        )
        self.mix = nn.Linear(2 * width, width)
        self.update = nn.Sequential(
            nn.Linear(self.nodes * self.nodes, 64),
            nn.ReLU(),
            nn.Linear(64, self.nodes * self.nodes),
        )

    def forward(self, support, support_y, query):
        h = self.embed(torch.cat([support, query], 1))
        batch = len(h)
        known = torch.full((batch, self.nodes, self.nodes), 1.0 / WAY)
        same = (support_y.unsqueeze(2) == support_y.unsqueeze(1)).float()
        known[:, :WAY, :WAY] = same
        for layer in self.edge:
            gap = (h.unsqueeze(2) - h.unsqueeze(1)).abs().permute(0, 3, 1, 2)
            score = layer(gap).squeeze(1)
            adjacency = torch.softmax(score, -1) * known
            adjacency = adjacency / adjacency.sum(-1, keepdim=True).clamp_min(1e-6)
            h = torch.relu(self.mix(torch.cat([h, adjacency @ h], -1)))
            known = torch.sigmoid(score + self.update(score.flatten(1)).view_as(score))
        edges = known[:, WAY:, :WAY]
        return edges @ F.one_hot(support_y, WAY).float()


def evaluate(model, source, episodes=8):
    model.eval()
    hits = total = 0
    with torch.no_grad():
        for _ in range(episodes):
            x, y, q, t = source.episode(16)
            hits += (model(x, y, q).argmax(-1) == t).sum().item()
            total += t.numel()
    model.train()
    return hits / total


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 80
    torch.manual_seed(seed)
    train, val = Classes(seed, 60), Classes(seed + 500, 20)
    model = EdgeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-6)
    best = 0.0
    for step in range(steps):
        x, y, q, t = train.episode(16)
        score = model(x, y, q)
        loss = F.nll_loss(
            (score / score.sum(-1, keepdim=True)).clamp_min(1e-6).log().flatten(0, 1), t.flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            accuracy = evaluate(model, val)
            if accuracy > best:
                best = accuracy
                torch.save(model.state_dict(), os.path.join(FOLDER, f"model_{seed}.pt"))
            print(f"step {step + 1} loss {loss.item():.4f} val {accuracy:.4f}")
        if step % 40 == 39:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5


main()
