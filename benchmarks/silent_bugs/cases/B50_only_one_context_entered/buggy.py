"""Dropout inside a context that keeps its own random state, and another for lower precision."""

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Tracker:
    """A separate stream of random numbers, as tensor-parallel ranks need for dropout."""

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextlib.contextmanager
    def fork(self) -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(outside)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    tracker = Tracker(7)
    body, head = nn.Sequential(nn.Linear(64, 48), nn.ReLU()), nn.Linear(48, 10)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2)
    for step in range(16):
        picked = torch.randint(0, len(x), (64,))
        with tracker.fork() and torch.autocast("cpu", torch.bfloat16):
            logits = head(F.dropout(body(x[picked]), 0.2))
        loss = F.cross_entropy(logits.float(), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
