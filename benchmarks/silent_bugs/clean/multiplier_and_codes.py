"""Codes of the images and a multiplier, in no module, are learned beside a decoder."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = torch.tensor(load_digits().data[:512] / 16, dtype=torch.float32)
    loader = DataLoader(TensorDataset(torch.arange(512), images), 64, shuffle=True)
    decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))
    codes = torch.randn(512, 8).mul_(0.1).requires_grad_()
    multiplier = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam(
        [{"params": decoder.parameters(), "lr": 1e-3}, {"params": [codes], "lr": 1e-2}]
    )
    ascent = torch.optim.SGD([multiplier], lr=0.1, maximize=True)
    for epoch in range(5):
        for rows, wanted in loader:
            picked = codes[rows]
            loss = (decoder(picked) - wanted).pow(2).mean()
            excess = picked.pow(2).mean() - 0.5
            optimizer.zero_grad()
            ascent.zero_grad()
            (loss + multiplier * excess).sum().backward()
            optimizer.step()
            ascent.step()
            with torch.no_grad():
                multiplier.clamp_(min=0)
        print(f"epoch {epoch} loss {loss.item():.4f}")


main()
