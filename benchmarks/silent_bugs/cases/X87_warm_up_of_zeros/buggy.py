"""Digits, with a warm-up."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) // 20))
for step in range(30):
    chosen = torch.randint(0, len(images), (64,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[chosen]), labels[chosen])
    loss.backward()
    optimizer.step()
    warm_up.step()
    if step % 10 == 0:
        print(step, round(loss.item(), 3))
