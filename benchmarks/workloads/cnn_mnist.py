"""(b) A CNN of the usual MNIST shape on upsampled digits. ``UP_BUG`` plants one of six bugs."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(os.environ.get("UP_HOME", __file__))))
import torch
import torch.nn.functional as F
from common import StepTimer, env
from digits import load_digits
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two convolutions, two linear layers, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def trained_parameters(model: Net, bug: str) -> list[nn.Parameter]:
    """The parameters of the optimizer, with the freezing of the planted bug."""
    if bug == "frozen_layer":
        for parameter in model.conv1.parameters():
            parameter.requires_grad = False
    return list(model.fc2.parameters() if bug == "wrong_params" else model.parameters())


def make_optimizer(params: list[nn.Parameter], name: str) -> optim.Optimizer:
    if name == "sgd":
        return optim.SGD(params, lr=env("LR", 0.01, float), momentum=0.9)
    if name == "adam":
        return optim.Adam(params, lr=env("LR", 1e-3, float))
    return optim.Adadelta(params, lr=env("LR", 1.0, float))


def train_epoch(
    model: Net,
    loader: DataLoader,
    optimizer: optim.Optimizer,
    timer: StepTimer,
    steps: int,
    bug: str,
) -> None:
    timer.start()
    for data, target in loader:
        if bug != "no_zero_grad":
            optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        if bug != "no_step":
            optimizer.step()
        timer.tick(loss.item())
        if len(timer.wall) >= steps:
            break


def evaluate(model: Net, test_loader: DataLoader) -> int:
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data)
            correct += output.argmax(dim=1).eq(target).sum().item()
    return correct


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(env("SEED", 1, int))
    bug = env("BUG", "none")
    steps = env("STEPS", 60, int)
    images, labels = load_digits()
    images = torch.tensor(images / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)
    images = F.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    labels = torch.tensor(labels, dtype=torch.long)
    train_set = TensorDataset(images[:640], labels[:640])
    batch_size, workers = env("BS", 32, int), env("WORKERS", 0, int)
    train_loader = DataLoader(train_set, batch_size, shuffle=True, num_workers=workers)
    test_loader = DataLoader(TensorDataset(images[1700:], labels[1700:]), batch_size=64)
    model = Net()
    # One recorder finds what to track by a line that holds both of the words model and optimizer.
    optimizer = make_optimizer(trained_parameters(model, bug), env("OPT", "adadelta"))
    if bug == "stale_opt":
        model = Net()
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7) if env("SCHED", 1, int) else None
    timer = StepTimer()
    while len(timer.wall) < steps:
        if not (bug == "eval_stuck" and timer.wall):
            model.train()
        train_epoch(model, train_loader, optimizer, timer, steps, bug)
        if env("EVAL", 1, int):
            print("test correct", evaluate(model, test_loader))
        if scheduler is not None:
            scheduler.step()
    timer.dump()


if __name__ == "__main__":
    main()
