"""Digit classification on several processes with accelerate."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40


class Accuracy:
    def __init__(self):
        self.right = self.total = 0

    def update(self, preds, labels):
        self.right += (preds == labels).sum().item()
        self.total += labels.numel()

    def compute(self):
        return self.right / self.total


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.fc = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10))

    def forward(self, x):
        return self.fc(self.conv(x))


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(SEED)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    train = DataLoader(
        TensorDataset(x[:1512], y[:1512]), batch_size=16, shuffle=True, drop_last=True
    )
    test = DataLoader(TensorDataset(x[1512:], y[1512:]), batch_size=50)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 40, 0.5)
    model, optimizer, train, test, schedule = accelerator.prepare(
        model, optimizer, train, test, schedule
    )
    step = 0
    while step < STEPS:
        model.train()
        for xb, yb in train:
            loss = nn.functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 20 == 0 or step == STEPS:
                model.eval()
                metric = Accuracy()
                for xb, y in test:
                    with torch.no_grad():
                        logits = model(xb)
                    preds, labels = accelerator.gather_for_metrics((logits.argmax(-1), y))
                    metric.update(preds, labels)
                accelerator.print(
                    f"step {step} loss {loss.item():.4f} accuracy {metric.compute():.4f}"
                )
                model.train()
            if step == STEPS:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
