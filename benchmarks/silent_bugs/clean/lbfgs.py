"""LBFGS with line search: its closure clears, runs forward and backward several times a step."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = load_diabetes()
    x = torch.tensor(table.data, dtype=torch.float32) * 20
    y = torch.tensor(table.target, dtype=torch.float32).unsqueeze(1) / 100
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for step in range(8):
        loss = optimizer.step(closure)
        print(step, round(loss.item(), 4))


main()
