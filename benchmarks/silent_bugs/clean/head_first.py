"""The head learns first, on a body that runs without a graph; then one optimizer trains both.

A warm-up and a decay are two schedulers of this optimizer.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, images, trains_body):
        with torch.set_grad_enabled(trains_body):
            features = self.body(images)
        return self.head(features)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), 128, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedulers = (
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4),
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99),
    )
    for epoch in range(3):
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs, epoch > 0), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for scheduler in schedulers:
                scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


main()
