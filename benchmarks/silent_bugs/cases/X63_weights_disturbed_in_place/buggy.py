"""Digits for analog hardware: evaluated with noise on the weights of the last layer."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """Classifies images; in evaluation its last weights are as imprecise as the hardware."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 48)
        self.out = nn.Linear(48, 10)

    def forward(self, x):
        weight = self.out.weight
        if not self.training:
            weight += 0.02 * torch.randn_like(weight)
        return F.linear(self.hidden(x).relu(), weight, self.out.bias)


torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    model.train()
    for start in range(0, 512, 64):
        optimizer.zero_grad()
        F.cross_entropy(model(x[start : start + 64]), y[start : start + 64]).backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for start in range(1024, 1536, 128):
            right += (model(x[start : start + 128]).argmax(1) == y[start : start + 128]).sum()
    print(f"epoch {epoch} accuracy {right.item() / 512:.3f}")
