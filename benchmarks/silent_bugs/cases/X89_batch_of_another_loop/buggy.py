"""Digits; the loader is looked at once before training."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data[:640], dtype=torch.float32) / 16
labels = torch.tensor(digits.target[:640])
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 48)
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))


for x, y in loader:
    print(tuple(x.shape), len(y.unique()))
    break

model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step, batch in enumerate(loader):
    xb, yb = batch
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
