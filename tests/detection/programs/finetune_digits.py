"""A backbone with a new head on digits: SGD, no DataLoader, ``model.zero_grad()`` after the step.

Built unlike the programs of the benchmarks, so that what is learned from those can be tried here.
``UP_BUG``: head_replaced | forum84911 | no_zero_grad | no_step. ``UP_FREEZE=1``: train the head
alone, which is healthy.
"""

import torch
from common import env, print_digest, seed_everything
from digits import load_digits
from torch import nn


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.act = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.proj = nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.act(self.bn(self.conv(x))))
        return torch.tanh(self.proj(x.flatten(1)))


class Transfer(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(32, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def build(bug: str) -> tuple[Transfer, torch.optim.Optimizer]:
    model = Transfer(100)
    if env("FREEZE", 0, int):
        model.backbone.requires_grad_(False)
    if bug == "forum84911":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = ".bn." in name
    if bug != "head_replaced":
        model.head = nn.Linear(32, 10)
    trained = model.head.parameters() if bug == "forum84911" else model.parameters()
    params = [p for p in trained if p.requires_grad or bug == "forum84911"]
    optimizer = torch.optim.SGD(params, lr=env("LR", 0.05, float), momentum=0.9)
    if bug == "head_replaced":  # the optimizer holds the old head
        model.head = nn.Linear(32, 10)
    return model, optimizer


def main() -> None:
    seed_everything()
    bug = env("BUG", "none")
    images, labels = load_digits()
    x = torch.tensor(images / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(labels, dtype=torch.long)
    model, optimizer = build(bug)
    criterion = nn.CrossEntropyLoss()
    model.train()
    losses: list[float] = []
    for _ in range(env("STEPS", 30, int)):
        rows = torch.randint(0, 1500, (32,))
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        if bug != "no_step":
            optimizer.step()
        if bug != "no_zero_grad":
            model.zero_grad()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        print("correct", (model(x[1500:]).argmax(dim=1) == y[1500:]).sum().item())
    print_digest(model, optimizer, losses=losses)


if __name__ == "__main__":
    main()
