"""Small convolutional classifier trained with SGDW."""

import os
import sys
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import Optimizer

FOLDER = tempfile.mkdtemp()

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 80


class SGDW(Optimizer):
    """SGD with momentum and decoupled weight decay."""

    def __init__(
        self, params, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False
    ):
        if lr <= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        defaults = dict(
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            momentum = group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                update = p.grad
                if momentum != 0:
                    state = self.state[p]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = update.clone()
                    else:
                        state["momentum_buffer"].mul_(momentum).add_(
                            update, alpha=1 - group["dampening"]
                        )
                    buffer = state["momentum_buffer"]
                    update = update.add(buffer, alpha=momentum) if group["nesterov"] else buffer
                p.add_(update, alpha=-group["lr"])
                if group["weight_decay"] != 0:
                    p.add_(group["weight_decay"], alpha=-group["lr"])
        return loss


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    value = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return value


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    data = load_digits()
    x = torch.tensor(data.images / 16.0, dtype=torch.float32)[:, None]
    y = torch.tensor(data.target)
    order = torch.randperm(len(x))
    train, test = order[:1400], order[1400:]
    mean, std = x[train].mean(), x[train].std()
    x = (x - mean) / std
    model = Net()
    optimizer = SGDW(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, milestones=[STEPS // 2, 3 * STEPS // 4], gamma=0.3
    )
    position = 0
    shuffled = train[torch.randperm(len(train))]
    for step in range(STEPS):
        if position + 64 > len(shuffled):
            shuffled, position = train[torch.randperm(len(train))], 0
        index = shuffled[position : position + 64]
        position += 64
        loss = F.cross_entropy(model(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if (step + 1) % 20 == 0:
            print(
                f"step {step + 1} loss {loss.item():.4f} test accuracy {accuracy(model, x[test], y[test]):.4f}"
            )
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        os.path.join(FOLDER, "digits.pt"),
    )


if __name__ == "__main__":
    main()
