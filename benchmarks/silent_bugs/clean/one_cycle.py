"""OneCycleLR steps with each batch and cycles momentum, too."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 48), nn.SiLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=24)
    for step in range(24):
        picked = torch.randint(0, len(x), (64,))
        loss = F.cross_entropy(model(x[picked]), y[picked], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 6 == 0:
            print(step, round(loss.item(), 3), round(scheduler.get_last_lr()[0], 4))


main()
