"""A CNN with BatchNorm under CPU bfloat16 autocast: SGD with Nesterov, no DataLoader."""

import torch
import torch.nn.functional as F
from common import env, print_digest, seed_everything
from torch import nn


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def main() -> None:
    seed_everything()
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    images = torch.randn(64, 3, 12, 12)
    labels = torch.randint(0, 5, (64,))
    losses: list[float] = []
    model.train()
    for step in range(env("STEPS", 20, int)):
        rows = torch.randperm(64)[:16]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 8 == 7:
            model.eval()
            with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
                print("mean", model(images).float().mean().item())
            model.train()
    print_digest(model, optimizer, losses=losses)


if __name__ == "__main__":
    main()
