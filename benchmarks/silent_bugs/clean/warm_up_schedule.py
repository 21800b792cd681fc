"""The learning rate begins at zero: the first step moves nothing, and that is right."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

WARM_UP = 4


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data[:512], dtype=torch.float32) / 16
    data = TensorDataset(x, torch.tensor(digits.target[:512]))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    total = 3 * len(loader)

    def rate(step: int) -> float:
        return step / WARM_UP if step < WARM_UP else 1 - (step - WARM_UP) / (total - WARM_UP)

    scheduler = LambdaLR(optimizer, rate)
    for epoch in range(3):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(epoch, round(loss.item(), 3), scheduler.get_last_lr())


main()
