"""One-stage detection: focal loss over all cells, box loss over cells with an object."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

SIZE, GRID = 32, 8


def scenes(count):
    x = 0.1 * torch.randn(count, 1, SIZE, SIZE)
    cls, box = torch.zeros(count, GRID, GRID), torch.zeros(count, 4, GRID, GRID)
    for n in range(count):
        for _ in range(int(torch.randint(1, 4, ()))):
            w, h = torch.randint(4, 11, (2,)).tolist()
            left, top = int(torch.randint(0, SIZE - w, ())), int(torch.randint(0, SIZE - h, ()))
            x[n, 0, top : top + h, left : left + w] += 1
            i, j = int((top + h / 2) // 4), int((left + w / 2) // 4)
            cls[n, i, j] = 1
            box[n, :, i, j] = torch.tensor(
                [(left + w / 2) / 4 - j, (top + h / 2) / 4 - i, math.log(w / 4), math.log(h / 4)]
            )
    return x, cls, box


def focal(scores, targets, alpha=0.25, gamma=2.0):
    chance = scores.sigmoid()
    cross = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    right = chance * targets + (1 - chance) * (1 - targets)
    weight = alpha * targets + (1 - alpha) * (1 - targets)
    return (weight * (1 - right) ** gamma * cross).sum()


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.GroupNorm(4, 32),
            nn.ReLU(),
        )
        self.cls, self.box = nn.Conv2d(32, 1, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)
        nn.init.constant_(self.cls.bias, -math.log(99))

    def forward(self, x):
        h = self.body(x)
        return self.cls(h).squeeze(1), self.box(h)


model = Detector()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(30):
    x, cls, box = scenes(8)
    scores, boxes = model(x)
    count = cls.sum().clamp(min=1)
    there = cls[:, None].expand_as(boxes) > 0
    loss = (
        focal(scores, cls) / count
        + F.smooth_l1_loss(boxes[there], box[there], reduction="sum") / count
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
