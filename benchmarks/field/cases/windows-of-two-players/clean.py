import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4


def clips(seed, n=192, frames=4, size=12):
    g = torch.Generator().manual_seed(seed)
    base = F.interpolate(torch.randn(n, 1, 3, 3, generator=g), size=size, mode="bilinear")
    motion = torch.linspace(0, 1, frames).view(1, frames, 1, 1) * torch.randn(
        n, 1, 1, 1, generator=g
    )
    return TensorDataset(
        (
            base.expand(-1, frames, -1, -1)
            + motion
            + 0.05 * torch.randn(n, frames, size, size, generator=g)
        ).tanh()
    )


class Tokenizer(nn.Module):
    def __init__(self, frames=4, width=24, codes=32):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(frames, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 8, 3, padding=1)
        )
        self.codebook = nn.Embedding(codes, 8)
        self.decoder = nn.Sequential(
            nn.Conv2d(8, width, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(width, frames, 4, 2, 1)
        )
        nn.init.uniform_(self.codebook.weight, -0.5, 0.5)

    def forward(self, x):
        z = self.encoder(x)
        flat = z.permute(0, 2, 3, 1).reshape(-1, 8)
        index = torch.cdist(flat, self.codebook.weight).argmin(1)
        q = self.codebook(index).view(z.shape[0], z.shape[2], z.shape[3], 8).permute(0, 3, 1, 2)
        commit = F.mse_loss(z, q.detach()) * 0.25 + F.mse_loss(q, z.detach())
        return self.decoder(z + (q - z).detach()), commit, index


class PatchDiscriminator(nn.Module):
    def __init__(self, frames=4, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(frames, width, 3, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width, 3, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 1, 3, padding=1),
        )

    def forward(self, x):
        return self.net(x)


def set_requires_grad(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


def evaluate(model, loader):
    model.eval()
    used, error = set(), 0.0
    with torch.no_grad():
        for (x,) in loader:
            out, _, index = model(x)
            used |= set(index.tolist())
            error += F.l1_loss(out, x).item()
    model.train()
    return error / len(loader), len(used)


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    micro = int(sys.argv[2]) if len(sys.argv) > 2 else 132
    torch.manual_seed(seed)
    loader = DataLoader(clips(seed), 8, shuffle=True, drop_last=True)
    val = DataLoader(clips(seed + 7, 32), 16)
    vae, disc = Tokenizer(), PatchDiscriminator()
    opt_vae = torch.optim.Adam(vae.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_disc = torch.optim.Adam(disc.parameters(), lr=1e-3, betas=(0.5, 0.9))
    done = 0
    while done < micro:
        for (x,) in loader:
            set_requires_grad(disc, False)
            recon, commit, _ = vae(x)
            g_loss = F.l1_loss(recon, x) + commit - 0.1 * disc(recon).mean()
            (g_loss / ACCUMULATE).backward()
            set_requires_grad(disc, True)
            real, fake = disc(x), disc(recon.detach())
            d_loss = 0.5 * (F.relu(1 - real).mean() + F.relu(1 + fake).mean())
            (d_loss / ACCUMULATE).backward()
            done += 1
            if done % ACCUMULATE == 0:
                nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
                opt_vae.step()
                opt_vae.zero_grad()
                opt_disc.step()
                opt_disc.zero_grad()
            if done == micro:
                break
        error, used = evaluate(vae, val)
        print(
            f"micro {done} g {g_loss.item():.4f} d {d_loss.item():.4f} val {error:.4f} codes {used}"
        )


main()
