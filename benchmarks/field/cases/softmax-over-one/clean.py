import sys

import torch

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(seed)
torch.set_num_threads(1)
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
digits = load_digits()
data = TensorDataset(
    torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
)


class AdditiveAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.to_query, self.to_key = nn.Linear(width, width), nn.Linear(width, width)
        self.w_g = nn.Parameter(torch.randn(width, 1) * 0.1)
        self.scale = width**-0.5
        self.proj, self.final = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        query = nn.functional.normalize(self.to_query(x), dim=-1)
        key = nn.functional.normalize(self.to_key(x), dim=-1)
        weights = (query @ self.w_g * self.scale).softmax(dim=1)
        summary = (weights * query).sum(dim=1, keepdim=True)
        return self.final(self.proj(summary * key) + query)


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.norm = nn.LayerNorm(width)
        self.attention = AdditiveAttention(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head((x + self.attention(self.norm(x))).mean(1))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
step = 0
while step < steps:
    for x, y in DataLoader(data, batch_size=48, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step >= steps:
            break
