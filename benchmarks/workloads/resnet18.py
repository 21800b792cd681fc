"""(d) ResNet18 (CIFAR stem, 11.2 M parameters) in plain torch on random 32x32 images."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(os.environ.get("UP_HOME", __file__))))
import torch
import torch.nn.functional as F
from common import StepTimer, env
from torch import nn

STAGES = (
    (64, 1),
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    (512, 1),
)  # channels, stride


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.short = nn.Sequential(project, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.short(x))


class ResNet18(nn.Module):
    """Eight basic blocks behind a 3x3 stem."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = [64, *(outputs for outputs, _ in STAGES)]
        blocks = [BasicBlock(cin, cout, stride) for cin, (cout, stride) in zip(inputs, STAGES)]
        self.layers = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(env("SEED", 0, int))
    batch_size = env("BS", 8, int)
    model = ResNet18()
    params = sum(p.numel() for p in model.parameters())
    print("params", params)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    model.train()
    timer = StepTimer()
    for _ in range(env("STEPS", 15, int)):
        data = torch.randn(batch_size, 3, 32, 32)
        target = torch.randint(0, 10, (batch_size,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        timer.tick(loss.item())
    timer.dump(params=params)


if __name__ == "__main__":
    main()
