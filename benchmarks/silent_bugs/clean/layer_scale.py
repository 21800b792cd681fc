"""Residual blocks whose scales begin at 1e-6, a rate for each depth, and a warm-up from zero."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, DEPTH = 16, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH),
            nn.GroupNorm(4, WIDTH),
            nn.Conv2d(WIDTH, WIDTH, 1),
        )
        self.gamma = nn.Parameter(torch.full((WIDTH, 1, 1), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gamma * self.layers(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(F.gelu(self.stem(x))).mean((2, 3)))


torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images[:1024], labels[:1024]), batch_size=64, shuffle=True)
model = Net()
parts = [model.head, *reversed(model.blocks), model.stem]
groups = [{"params": part.parameters(), "lr": 1e-3 * 0.75**i} for i, part in enumerate(parts)]
optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
for _ in range(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
print(round(loss.item(), 3))
