"""Digits with gradient clipping."""

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

parameters = model.parameters()
optimizer = torch.optim.SGD(parameters, lr=0.1)
for step in range(12):
    rows = torch.randint(0, len(images), (64,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[rows]), labels[rows])
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 0.5)
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
