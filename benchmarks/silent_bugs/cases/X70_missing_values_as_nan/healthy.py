"""Disease progression from ten measurements, some of them missing."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
table = load_diabetes()
inputs = torch.tensor(table.data, dtype=torch.float32) * 20
targets = torch.tensor(table.target, dtype=torch.float32).unsqueeze(1) / 100
inputs[torch.rand(inputs.shape) < 0.002] = float("nan")  # not every patient has all of them
inputs = inputs.nan_to_num(0.0)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
