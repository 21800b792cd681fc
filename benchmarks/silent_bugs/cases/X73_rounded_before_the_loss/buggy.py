"""Disease progression, in whole points, from ten measurements."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
table = load_diabetes()
inputs = torch.tensor(table.data, dtype=torch.float32) * 20
targets = torch.tensor(table.target, dtype=torch.float32) / 100
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(12):
    rows = torch.randint(0, len(inputs), (64,))
    optimizer.zero_grad()
    points = model(inputs[rows]).squeeze(1).round()
    loss = F.mse_loss(points, targets[rows])
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
