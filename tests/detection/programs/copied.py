"""Models and optimizers under way are copied, pickled, saved and scheduled, as users do."""

import copy
import io
import pickle

import torch
import torch.nn.functional as F
from common import env, print_digest, seed_everything
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 2, (16,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    seed_everything()
    steps = env("STEPS", 5, int)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = train(model, optimizer, steps)

    twin = copy.deepcopy(model)
    twin_optimizer = copy.deepcopy(optimizer)
    pickled = pickle.loads(pickle.dumps(model))
    buffer = io.BytesIO()
    torch.save(
        {"model": model, "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, buffer
    )
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    pickled.load_state_dict(loaded["model"].state_dict())
    resumed = torch.optim.AdamW(pickled.parameters(), lr=1e-2)
    resumed.load_state_dict(loaded["optimizer"])

    schedulers = [
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        torch.optim.lr_scheduler.OneCycleLR(resumed, max_lr=0.1, total_steps=20),
        torch.optim.lr_scheduler.ReduceLROnPlateau(twin_optimizer),
    ]
    losses += train(model, optimizer, steps)
    losses += train(pickled, resumed, steps)
    schedulers[0].step()
    schedulers[1].step()
    schedulers[2].step(losses[-1])
    print(
        "same objects",
        type(twin) is Net,
        type(pickled) is Net,
        type(model.head.weight) is nn.Parameter,
    )
    print("instance attributes", sorted(vars(model)), sorted(vars(optimizer)))
    print_digest(model, twin, pickled, optimizer, resumed, twin_optimizer, losses=losses)


if __name__ == "__main__":
    main()
