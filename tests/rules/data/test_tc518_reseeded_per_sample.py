"""TC518: a generator that is seeded with one number for each sample."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.workers import run_with, worker
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def seeded(*steps: list[int], source: str = "numpy") -> list[Event]:
    """Steps in which these numbers are seeded with."""
    trace = net()
    for numbers in steps:
        trace.begin_step()
        for number in numbers:
            trace.seed(source, number)
        trace.zero_grad().forward().backward().optimizer_step()
    return trace.end_step().build()


BROKEN = seeded(*[[0] * 8] * 4)


def test_fires_once_in_the_third_step(golden: Golden) -> None:
    finding = fires("TC518", BROKEN)
    assert (finding.first_step, finding.violations) == (2, 1)
    assert finding.subject.api == "numpy.random.seed"
    golden(finding)
    assert mentions(finding, 8)


def test_fires_on_the_generator_of_python() -> None:
    events = seeded(*[[7, 7, 7]] * 3, source="python")
    assert fires("TC518", events).subject.api == "random.seed"


@pytest.mark.parametrize(
    ("steps", "source"),
    [
        ([[0] * 8] * 2, "numpy"),  # two steps
        ([[0] * 2] * 9, "numpy"),  # for image and mask, or two generators
        ([list(range(8))] * 9, "numpy"),  # by the index
        ([[step] * 8 for step in range(9)], "numpy"),  # drawn once for a batch
        ([[0] * 8, [], [0] * 8, [], [0] * 8], "numpy"),
        ([[0] * 8] * 9, "torch"),  # TC510
        ([[]] * 9, "numpy"),
    ],
)
def test_quiet_on_others(steps: list[list[int]], source: str) -> None:
    verdict = quiet("TC518", seeded(*steps, source=source))
    assert verdict in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def of_worker(numbers: list[int], loader: str = "loader0") -> list[Event]:
    trace = TraceBuilder(pid=2000, worker=True).process(worker=True)
    for number in numbers:
        trace.seed("numpy", number)
    return run_with([trace.build(), worker(0, {"numpy": ("a", "b")}, loader=loader)])


def test_in_workers_of_training_loaders_alone(golden: Golden) -> None:
    finding = fires("TC518", of_worker([3] * 8))
    golden(finding)
    assert mentions(finding, 8, 0, "loader0")
    assert quiet("TC518", of_worker([3] * 7)) is Verdict.HELD
    assert quiet("TC518", of_worker(list(range(20)))) is Verdict.HELD
    assert quiet("TC518", of_worker([3] * 8, loader="loader1")) is Verdict.NOT_TRIGGERED


class Noisy(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, seed: Callable[[int], None]) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.seed(index)
        noise = np.random.rand() + random.random()
        return torch.tensor([index / 64, noise], dtype=torch.float32), index % 3


@pytest.mark.parametrize(
    ("seed", "is_wrong"),
    [
        (lambda index: np.random.seed(0), True),
        (lambda index: random.seed(0), True),
        (np.random.seed, False),
        (lambda index: None, False),
    ],
)
def test_recorded_runs(tmp_path: Path, seed: Callable[[int], None], is_wrong: bool) -> None:
    model = nn.Linear(2, 3)
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(Noisy(seed), 16, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    if is_wrong:
        assert fires("TC518", run.events).severity == "warning"
    else:
        assert quiet("TC518", run.events) is Verdict.NOT_TRIGGERED
