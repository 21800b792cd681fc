"""One encoder called on two inputs of each pair, with a margin loss."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.layers(x), dim=1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(20):
        left, right = torch.randint(0, len(x), (64,)), torch.randint(0, len(x), (64,))
        same = torch.where(y[left] == y[right], 1, -1)
        loss = F.cosine_embedding_loss(model(x[left]), model(x[right]), same, margin=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 4))


main()
