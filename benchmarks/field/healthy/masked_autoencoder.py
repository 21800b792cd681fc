"""A masked autoencoder over patches; only hidden patches are in the loss."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

PATCHES, WIDTH, KEEP = 16, 32, 6
patches = images.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, PATCHES, 4)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        self.hidden = nn.Parameter(torch.zeros(WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        self.restore = nn.Linear(WIDTH, 4)

    def forward(self, x):
        order = torch.rand(x.shape[:2]).argsort(1)
        kept = order[:, :KEEP, None].expand(-1, -1, WIDTH)
        encoded = self.encoder((self.embed(x) + self.place).gather(1, kept))
        full = self.hidden.expand(len(x), PATCHES, -1).scatter(1, kept, encoded)
        masked = torch.ones(x.shape[:2]).scatter(1, order[:, :KEEP], 0.0)
        return self.restore(self.decoder(full + self.place)), masked


model = Autoencoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(30):
    x = patches[torch.randint(0, len(patches), (64,))]
    restored, masked = model(x)
    loss = (((restored - x) ** 2).mean(-1) * masked).sum() / masked.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
