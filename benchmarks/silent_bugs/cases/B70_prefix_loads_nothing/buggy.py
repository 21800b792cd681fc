"""A model is trained compiled; its weights are then fine-tuned in a plain one."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(
    torch.tensor(images[:640], dtype=torch.float32) / 16, torch.tensor(labels[:640])
)
batches = DataLoader(data, batch_size=64, shuffle=True)


def build():
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def epoch(model, optimizer):
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


teacher = build()
source = torch.compile(teacher, backend="eager")
epoch(teacher, torch.optim.Adam(teacher.parameters(), lr=1e-2))
model = build()
model.load_state_dict(source.state_dict(), strict=False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
epoch(model, optimizer)
