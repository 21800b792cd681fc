"""An average of weights with a warm-up of its decay, saved and resumed with the model."""

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Average(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.count = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.count += 1
        decay = min(0.99, (int(self.count) - 1) / (int(self.count) + 4))
        for mine, theirs in zip(self.model.parameters(), model.parameters()):
            mine.lerp_(theirs, 1 - decay)


def make() -> tuple[nn.Module, Average, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return model, Average(model), torch.optim.Adam(model.parameters(), lr=1e-2)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model, average, optimizer = make()
    for step in range(20):
        if step == 10:  # the run is resumed
            saved = [part.state_dict() for part in (model, average, optimizer)]
            model, average, optimizer = make()
            for part, state in zip((model, average, optimizer), saved):
                part.load_state_dict(state)
        picked = torch.randint(0, len(x), (64,))
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        if step % 5 == 0:
            print(step, round(loss.item(), 3), int(average.count))


main()
