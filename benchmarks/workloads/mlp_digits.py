"""(a) A small MLP with BatchNorm on the scikit-learn digits. ``UP_BUG`` plants one of nine bugs."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(os.environ.get("UP_HOME", __file__))))
import torch
import torch.nn.functional as F
from common import StepTimer, env
from digits import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Three linear layers; ``detach`` cuts the first off from the gradient."""

    def __init__(self, detach: bool = False) -> None:
        super().__init__()
        self.detach = detach
        self.fc1 = nn.Linear(64, 128)
        self.bn1 = nn.BatchNorm1d(128)
        self.fc2 = nn.Linear(128, 64)
        self.drop = nn.Dropout(0.2)
        self.fc3 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.fc1(x)))
        if self.detach:
            x = x.detach()
        x = F.relu(self.fc2(x))
        x = self.drop(x)
        return self.fc3(x)


def trained_parameters(model: Net, bug: str) -> list[nn.Parameter]:
    """The parameters of the optimizer, with the freezing of the planted bug."""
    if bug == "forum84911":  # freeze all but BatchNorm, then optimize only the last layer
        for name, parameter in model.named_parameters():
            if "bn" not in name:
                parameter.requires_grad = False
    if bug == "frozen_layer":  # first layer frozen by accident
        for parameter in model.fc1.parameters():
            parameter.requires_grad = False
    if bug in ("forum84911", "wrong_params"):  # the optimizer only got the last layer
        return list(model.fc3.parameters())
    return list(model.parameters())


def make_optimizer(params: list[nn.Parameter], name: str, lr: float) -> optim.Optimizer:
    if name == "sgd":
        return optim.SGD(params, lr=lr, momentum=0.9)
    if name == "adamw":
        return optim.AdamW(params, lr=lr)
    if name == "adadelta":
        return optim.Adadelta(params, lr=1.0)
    return optim.Adam(params, lr=lr)


def evaluate(model: Net, test_loader: DataLoader) -> int:
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            pred = model(data).argmax(dim=1)
            correct += (pred == target).sum().item()
    return correct


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
        loss = F.cross_entropy(output, target)
        if bug == "step_before_backward":
            optimizer.step()
        loss.backward()
        if bug not in ("no_step", "step_before_backward"):
            optimizer.step()
        timer.tick(loss.item())
        if len(timer.wall) >= steps:
            break


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(env("SEED", 0, int))
    bug = env("BUG", "none")
    steps = env("STEPS", 100, int)
    images, labels = load_digits()
    images = torch.tensor(images / 16.0, dtype=torch.float32)
    labels = torch.tensor(labels, dtype=torch.long)
    train_set = TensorDataset(images[:1500], labels[:1500])
    test_set = TensorDataset(images[1500:], labels[1500:])
    batch_size, workers = env("BS", 64, int), env("WORKERS", 0, int)
    train_loader = DataLoader(train_set, batch_size, shuffle=True, num_workers=workers)
    test_loader = DataLoader(test_set, batch_size=128)

    model = Net(detach=(bug == "detached"))
    # One recorder finds what to track by a line that holds both of the words model and optimizer.
    optimizer = make_optimizer(
        trained_parameters(model, bug), env("OPT", "adam"), env("LR", 1e-3, float)
    )
    if bug == "stale_opt":  # model re-created after the optimizer was built
        model = Net()
    has_schedule = env("SCHED", 0, int)
    scheduler = (
        optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7) if has_schedule else None
    )

    timer = StepTimer()
    while len(timer.wall) < steps:
        if not (bug == "eval_stuck" and timer.wall):
            model.train()
        train_epoch(model, train_loader, optimizer, timer, steps, bug)
        if env("EVAL", 1, int):
            print("eval correct", evaluate(model, test_loader))
        if scheduler is not None:
            scheduler.step()
    timer.dump()


if __name__ == "__main__":
    main()
