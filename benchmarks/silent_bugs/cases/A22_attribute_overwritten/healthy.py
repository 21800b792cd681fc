"""A mixture of experts in which each expert knows the place it was given by its id."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Expert(nn.Module):
    def __init__(self, id: int) -> None:
        super().__init__()
        self.id = id
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 4)
        self.experts = nn.ModuleList(Expert(i) for i in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = self.router(x).softmax(dim=1)
        placed = {expert.id: expert for expert in self.experts}
        return sum(share[:, i : i + 1] * placed[i](x) for i in range(4) if i in placed)


class Engine:
    """Wraps a model for training, and numbers its modules for its own books."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        for number, module in enumerate(model.modules()):
            module.engine_id = number
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    engine = Engine(Mixture())
    for step in range(16):
        picked = torch.randint(0, len(x), (64,))
        loss = engine.step(x[picked], y[picked])
        if step % 5 == 0:
            print(step, round(loss, 3))


main()
