"""Full-batch regression with LBFGS: clearing, forward and backward happen inside each step."""

import torch
import torch.nn.functional as F
from common import env, print_digest, seed_everything
from torch import nn


def main() -> None:
    seed_everything()
    inputs = torch.linspace(-2, 2, 64).unsqueeze(1)
    targets = torch.sin(2 * inputs) + 0.1 * torch.randn_like(inputs)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.3, max_iter=5, line_search_fn="strong_wolfe"
    )
    losses: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    for _ in range(env("STEPS", 10, int)):
        losses.append(optimizer.step(closure).item())
    print_digest(model, optimizer, losses=losses)


if __name__ == "__main__":
    main()
