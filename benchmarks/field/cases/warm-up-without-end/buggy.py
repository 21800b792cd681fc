import sys

import torch

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(seed)
torch.set_num_threads(1)
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps = int(sys.argv[2]) if len(sys.argv) > 2 else 100
digits = load_digits()
data = TensorDataset(
    torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
)


class Schedule:
    def __init__(self, optimizer, warmup, total, rate):
        self.optimizer, self.warmup, self.total, self.rate = optimizer, warmup, total, rate
        self.updates = 0
        self.warmup_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self.warmup_factor)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self.decay_factor)

    def warmup_factor(self, step):
        return max(min(1.0, step / max(1, self.warmup)), 0.01)

    def decay_factor(self, step):
        return max(0.0, 1 - step / max(1, self.total - self.warmup))

    def is_warming_up(self):
        return self.optimizer.param_groups[0]["lr"] < 1.0

    def step(self):
        self.updates += 1
        if self.is_warming_up():
            self.warmup_scheduler.step(self.updates)
        else:
            self.scheduler.step(self.updates - self.warmup)


import warnings

warnings.filterwarnings("ignore")
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
schedule = Schedule(optimizer, 15, steps, 5e-3)
step = 0
while step < steps:
    for x, y in DataLoader(data, batch_size=60, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step >= steps:
            break
