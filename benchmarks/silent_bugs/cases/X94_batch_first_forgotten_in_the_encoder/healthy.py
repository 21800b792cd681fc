"""The last columns of a digit are forecast from the first: a GRU encodes, attention decodes."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
images = torch.tensor(load_digits().images, dtype=torch.float32).transpose(1, 2) / 16


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.GRU(8, 32, batch_first=True)
        self.query = nn.Parameter(torch.randn(1, 3, 32))
        self.decoder = nn.MultiheadAttention(32, 2, batch_first=True)
        self.out = nn.Linear(32, 8)

    def forward(self, past):
        memory = self.encoder(past)[0]
        query = self.query.expand(len(past), -1, -1)
        return self.out(self.decoder(query, memory, memory)[0])


model = Forecast()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(24):
    batch = images[torch.randint(0, 1500, (64,))]
    loss = F.smooth_l1_loss(model(batch[:, :5]), batch[:, 5:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 0:
        print(f"step {step} loss {loss.item():.4f}")
