"""Digits, evaluated with an average of the weights that is swapped in and out by hand."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Average:
    """A shadow of the weights."""

    def __init__(self, model, decay=0.8):
        self.model, self.decay = model, decay
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self):
        for mine, theirs in zip(self.shadow, self.model.parameters()):
            mine.lerp_(theirs, 1 - self.decay)

    @torch.no_grad()
    def __enter__(self):
        self.stored = [p.detach().clone() for p in self.model.parameters()]
        for theirs, mine in zip(self.model.parameters(), self.shadow):
            theirs.copy_(mine)

    @torch.no_grad()
    def __exit__(self, *error):
        for theirs, stored in zip(self.model.parameters(), self.stored):
            theirs.copy_(stored)


torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
average = Average(model)
for epoch in range(4):
    model.train()
    for start in range(0, 512, 64):
        optimizer.zero_grad()
        F.cross_entropy(model(x[start : start + 64]), y[start : start + 64]).backward()
        optimizer.step()
        average.update()
    model.eval()
    with average, torch.no_grad():
        right = (model(x[1024:]).argmax(1) == y[1024:]).float().mean().item()
    print(f"epoch {epoch} accuracy {right:.3f}")
