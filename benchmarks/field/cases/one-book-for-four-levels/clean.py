import os
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER = tempfile.mkdtemp()


def signals(seed, n=384, dim=24):
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(6, dim, generator=torch.Generator().manual_seed(9))
    return TensorDataset(
        torch.randn(n, 6, generator=g) @ basis / 2 + 0.1 * torch.randn(n, dim, generator=g)
    )


class Codebook(nn.Module):
    def __init__(self, codes, dim, decay=0.8):
        super().__init__()
        self.decay = decay
        embed = torch.randn(codes, dim) * 0.5
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.ones(codes))
        self.register_buffer("embed_avg", embed.clone())

    def lookup(self, x):
        index = torch.cdist(x, self.embed).argmin(1)
        return index, F.embedding(index, self.embed)

    @torch.no_grad()
    def ema_update(self, x, index):
        onehot = F.one_hot(index, len(self.embed)).type_as(x)
        self.cluster_size.lerp_(onehot.sum(0), 1 - self.decay)
        self.embed_avg.lerp_(onehot.t() @ x, 1 - self.decay)
        n = self.cluster_size.sum()
        smoothed = (self.cluster_size + 1e-5) / (n + len(self.embed) * 1e-5) * n
        self.embed.copy_(self.embed_avg / smoothed.unsqueeze(1))


class ResidualVQ(nn.Module):
    def __init__(self, dim, codes=16, levels=4):
        super().__init__()
        self.levels, self.codebook = levels, Codebook(codes, dim)

    def forward(self, x):
        residual, out, commit, seen = x, torch.zeros_like(x), 0.0, []
        for _ in range(self.levels):
            index, quantized = self.codebook.lookup(residual.detach())
            seen.append((residual.detach(), index))
            commit = commit + F.mse_loss(residual, quantized)
            out = out + quantized
            residual = residual - quantized
        if self.training:
            self.codebook.ema_update(
                torch.cat([r for r, _ in seen]), torch.cat([i for _, i in seen])
            )
        return x + (out - x).detach(), commit


class Codec(nn.Module):
    def __init__(self, dim=24, latent=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Linear(48, latent))
        self.vq = ResidualVQ(latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 48), nn.ReLU(), nn.Linear(48, dim))

    def forward(self, x):
        z, commit = self.vq(self.encoder(x))
        return self.decoder(z), commit


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        value = sum(F.mse_loss(model(x)[0], x).item() for (x,) in loader) / len(loader)
    model.train()
    return value


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    torch.manual_seed(seed)
    train = DataLoader(signals(seed), 32, shuffle=True)
    val = DataLoader(signals(seed + 77, 96), 32)
    model = Codec()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step = 0
    while step < steps:
        total = 0.0
        for i, (x,) in enumerate(train):
            out, commit = model(x)
            loss = F.mse_loss(out, x) + 0.25 * commit
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += F.mse_loss(out, x).item()
            step += 1
            if step == steps:
                break
        print(f"step {step} train {total / (i + 1):.4f} val {evaluate(model, val):.4f}")
    torch.save(model.state_dict(), os.path.join(FOLDER, f"model_{seed}.pt"))


main()
