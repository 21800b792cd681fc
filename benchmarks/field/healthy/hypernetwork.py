"""A network produces the weights of another from an embedding of the task."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Hyper(nn.Module):
    def __init__(self, tasks=5, width=8, inside=6, hidden=12):
        super().__init__()
        self.shapes = [(hidden, inside), (hidden,), (2, hidden), (2,)]
        self.embed = nn.Embedding(tasks, width)
        total = sum(torch.Size(shape).numel() for shape in self.shapes)
        self.make = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, total))

    def forward(self, x, task):
        flat = self.make(self.embed(task))
        parts = flat.split([torch.Size(shape).numel() for shape in self.shapes])
        w1, b1, w2, b2 = (part.view(shape) for part, shape in zip(parts, self.shapes))
        return F.linear(F.relu(F.linear(x, w1, b1)), w2, b2)


model = Hyper()
rules = torch.randn(5, 6)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(50):
    task = torch.randint(0, 5, ())
    x = torch.randn(32, 6)
    loss = F.cross_entropy(model(x, task), (x @ rules[task] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
