"""Surrogate of a diffusing field; short validation every few steps, full validation at the end of an epoch."""

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 60


def simulate(n, generator):
    x = torch.randn(n, 1, 16, 16, generator=generator)
    for _ in range(3):
        x = (x + x.roll(1, 2) + x.roll(-1, 2) + x.roll(1, 3) + x.roll(-1, 3)) / 5
    x = x / x.std()
    y = x
    for _ in range(2):
        y = (
            y
            + 0.2 * (y.roll(1, 2) + y.roll(-1, 2) + y.roll(1, 3) + y.roll(-1, 3) - 4 * y)
            + 0.05 * y * (1 - y * y)
        )
    return TensorDataset(x, y)


class Surrogate(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        conv = lambda i, o: nn.Conv2d(i, o, 3, padding=1, padding_mode="circular")
        self.net = nn.Sequential(
            conv(1, width), nn.GELU(), conv(width, width), nn.GELU(), conv(width, 1)
        )

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(
        self, model, train_loader, valid_loader, optimizer, scheduler, short_validation_length=16
    ):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.train_loader, self.valid_loader = train_loader, valid_loader
        self.short_validation_length = short_validation_length
        self.best, self.best_state = float("inf"), None

    @torch.no_grad()
    def validation_loop(self, full=False):
        self.model.eval()
        denom = len(self.valid_loader) if full else self.short_validation_length
        loss = 0.0
        for count, (x, y) in enumerate(self.valid_loader):
            if count >= denom:
                break
            loss += F.mse_loss(self.model(x), y).item() / y.var().item()
        self.model.train()
        return loss / denom

    def keep_best(self, value):
        if value < self.best:
            self.best = value
            self.best_state = copy.deepcopy(self.model.state_dict())

    def train(self, steps):
        step = 0
        while step < steps:
            for x, y in self.train_loader:
                loss = F.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                step += 1
                if step % 10 == 0:
                    value = self.validation_loop()
                    self.keep_best(value)
                    print(f"step {step} train {loss.item():.4f} valid {value:.4f}")
                if step >= steps:
                    break
            value = self.validation_loop(full=True)
            self.keep_best(value)
            print(f"step {step} full valid {value:.4f} best {self.best:.4f}")
        self.model.load_state_dict(self.best_state)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED + 9)
    train_loader = DataLoader(simulate(640, generator), batch_size=32, shuffle=True, drop_last=True)
    valid_loader = DataLoader(simulate(160, generator), batch_size=32, shuffle=False)
    model = Surrogate()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, total_iters=STEPS)
    Trainer(model, train_loader, valid_loader, optimizer, scheduler).train(STEPS)


if __name__ == "__main__":
    main()
