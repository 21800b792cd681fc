import sys

import torch
import torch.nn.functional as F
from torch import nn


def series(seed, length=3000):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length).float()
    return torch.sin(t / 7) + 0.5 * torch.sin(t / 19 + 1) + 0.1 * torch.randn(length, generator=g)


class PatchEncoder(nn.Module):
    def __init__(self, width=24, dim=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 5, 2, 2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, 2, 2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.project, self.order = nn.Linear(width, dim), nn.Linear(2 * width, 2)

    def forward(self, x):
        h = self.net(x.unsqueeze(1))
        return h, F.normalize(self.project(h), dim=-1)


def draw(data, batch, patch, g):
    start = torch.randint(8, len(data) - 2 * patch - 8, (batch,), generator=g)
    near = start + torch.randint(-3, 4, (batch,), generator=g)
    idx = torch.arange(patch)
    return data[start[:, None] + idx], data[near[:, None] + idx], data[start[:, None] + patch + idx]


def triplet(anchor, positive, margin=1.2):
    sims = anchor @ anchor.t()
    others = sims.clone()
    others.diagonal().fill_(-float("inf"))
    negative, _ = torch.max(1 - others, dim=1)
    close = 1 - (anchor * positive).sum(-1)
    return F.relu(close - negative + margin).mean()


def score(model, memory, data, patch):
    model.eval()
    with torch.no_grad():
        windows = data.unfold(0, patch, 4)
        _, z = model(windows)
        near = (1 - z @ memory.t()).topk(3, dim=1, largest=False).values.mean(1)
    model.train()
    return near


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 45
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    patch, train, test = 32, series(seed), series(seed + 1, 1000)
    test[400:440] += torch.randn(40, generator=g)
    model = PatchEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        a, p, after = draw(train, 48, patch, g)
        ha, za = model(a)
        hp, zp = model(p)
        hb, _ = model(after)
        flip = torch.rand(len(a), generator=g) < 0.5
        pair = torch.where(flip[:, None], torch.cat([hb, ha], 1), torch.cat([ha, hb], 1))
        pretext = F.cross_entropy(model.order(pair), flip.long())
        metric = triplet(za, zp)
        loss = metric + 0.5 * pretext
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 15 == 14:
            with torch.no_grad():
                model.eval()
                memory = model(train.unfold(0, patch, 16))[1]
            values = score(model, memory, test, patch)
            print(
                f"step {step + 1} loss {loss.item():.4f} normal {values[:90].mean():.4f} odd {values[98:110].mean():.4f}"
            )


main()
