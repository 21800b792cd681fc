"""Digits with DistributedDataParallel on two ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
digits = load_digits()
images = torch.tensor(digits.data[:512], dtype=torch.float32) / 16
data = TensorDataset(images, torch.tensor(digits.target[:512]))
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step == 7:
        break
dist.barrier()
dist.destroy_process_group()
