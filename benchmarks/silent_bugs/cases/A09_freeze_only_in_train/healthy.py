"""Fine-tuning a backbone whose first stages are to stay as they were pre-trained."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Backbone(nn.Module):
    def __init__(self, frozen_stages: int) -> None:
        super().__init__()
        self.frozen_stages = frozen_stages
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(3)
        )

    def freeze(self) -> None:
        for stage in self.stages[: self.frozen_stages]:
            stage.eval()
            stage.requires_grad_(False)

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        self.freeze()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone(frozen_stages=2)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = Classifier()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(16):
        picked = torch.randint(0, len(x), (64,))
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
