"""Dense prediction with upsampling, labels to ignore, unbalanced classes with weights."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

IGNORE = 255


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(9, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = F.relu(self.norm(self.down(x)))
        return self.out(torch.cat([self.up(low), x], dim=1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
    y = (x[:, 0] > 0.6).long()
    y[:, 0] = y[:, -1] = IGNORE
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weight = torch.tensor([1.0, 3.0])
    for step in range(16):
        picked = torch.randint(0, len(x), (16,))
        loss = F.cross_entropy(model(x[picked]), y[picked], weight=weight, ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
