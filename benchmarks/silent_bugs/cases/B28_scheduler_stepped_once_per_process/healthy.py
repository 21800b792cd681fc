"""Digits on two processes, with a linear schedule."""

import os

import torch
import torch.distributed as dist
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.fc2 = nn.Linear(48, 10)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images[:768], dtype=torch.float32) / 16, torch.tensor(labels[:768])
data = TensorDataset(x, y)
accelerator = Accelerator(cpu=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps = len(loader)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer.optimizer, 1.0, 0.0, total_iters=steps)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    schedule.step()
print(f"rank {accelerator.process_index} loss {loss.item():.3f}", flush=True)
dist.barrier()
os._exit(0)  # tearing the process group down aborts now and then
