"""A variational autoencoder: reparameterization, two terms of the loss, warm-up of one of them."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.mean = nn.Linear(48, 6)
        self.log_var = nn.Linear(48, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.encoder(x)
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decoder(z), mean, log_var


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.tensor(load_digits().data[:512], dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(x), batch_size=64, shuffle=True, drop_last=True)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        for (images,) in loader:
            logits, mean, log_var = model(images)
            data = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
            prior = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum()
            loss = (data + epoch / 3 * prior) / len(images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, round(loss.item(), 2))
    model.eval()
    with torch.no_grad():
        print(model.decoder(torch.randn(2, 6)).sigmoid().mean().item())


main()
