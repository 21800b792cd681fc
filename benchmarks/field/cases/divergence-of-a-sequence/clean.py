import os
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOLDER = tempfile.mkdtemp()


class Arrivals(Dataset):
    """Sequences of waiting times of different length."""

    def __init__(self, seed, n=256, longest=24):
        g = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(6, longest + 1, (n,), generator=g)
        level = torch.rand(n, 1, generator=g) * 2
        drift = torch.linspace(0, 1, longest) * torch.randn(n, 1, generator=g)
        self.times = F.softplus(level + drift + 0.4 * torch.randn(n, longest, generator=g))

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return self.times[i, : self.lengths[i]]


def collate(rows):
    longest = max(len(r) for r in rows)
    times = torch.zeros(len(rows), longest)
    mask = torch.zeros(len(rows), longest)
    for i, r in enumerate(rows):
        times[i, : len(r)], mask[i, : len(r)] = r, 1
    return times, mask


class VAEDecoder(nn.Module):
    def __init__(self, width=32, latent=6):
        super().__init__()
        self.history = nn.GRU(1, width, batch_first=True)
        self.encode = nn.Sequential(
            nn.Linear(width + 1, width), nn.ReLU(), nn.Linear(width, 2 * latent)
        )
        self.decode = nn.Sequential(
            nn.Linear(width + latent, width), nn.ReLU(), nn.Linear(width, 2)
        )

    def forward(self, times, mask):
        past = torch.cat([torch.zeros_like(times[:, :1]), times[:, :-1]], 1)
        hidden, _ = self.history(past.unsqueeze(-1))
        mean, log_var = self.encode(torch.cat([hidden, times.unsqueeze(-1)], -1)).chunk(2, -1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        location, log_scale = self.decode(torch.cat([hidden, z], -1)).unbind(-1)
        log_scale = log_scale.clamp(-4, 2)
        nll = (0.5 * ((times - location) / log_scale.exp()) ** 2 + log_scale) * mask
        kl = (-0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp(), dim=-1)) * mask
        return nll.sum() / mask.sum(), kl.sum() / mask.sum()


def evaluate(model, loader):
    model.eval()
    total = [0.0, 0.0]
    with torch.no_grad():
        for times, mask in loader:
            nll, kl = model(times, mask)
            total[0] += nll.item()
            total[1] += kl.item()
    model.train()
    return [t / len(loader) for t in total]


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    torch.manual_seed(seed)
    train = DataLoader(Arrivals(seed), 32, shuffle=True, collate_fn=collate)
    val = DataLoader(Arrivals(seed + 99, 64), 32, collate_fn=collate)
    model = VAEDecoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    step, best = 0, float("inf")
    while step < steps:
        for times, mask in train:
            nll, kl = model(times, mask)
            loss = nll + 0.5 * kl
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            step += 1
            if step == steps:
                break
        scheduler.step()
        nll, kl = evaluate(model, val)
        if nll + 0.5 * kl < best:
            best = nll + 0.5 * kl
            torch.save(model.state_dict(), os.path.join(FOLDER, f"model_{seed}.pt"))
        print(f"step {step} nll {nll:.4f} kl {kl:.4f}")


main()
