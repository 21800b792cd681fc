"""TC072: a permutation that is sorted again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.ledger.programs import model, recorded
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.data import EpochOrder

_SIZE = 32


def epochs(*, drawn: tuple[str, ...] = ("torch",), shift: int = 0, count: int = 3) -> TraceBuilder:
    """Epochs of four batches with sorted indices; each begins ``shift`` later than the last."""
    trace = net()
    for epoch in range(count):
        for index in range(4):
            trace.begin_step()
            first = epoch * shift + index * 8
            indices = list(range(first, first + 8))
            fields = {"indices": indices, "drawn": 8, "sampler": "__main__.Sampler"}
            trace.batch(size=8, index=index, epoch=epoch, **fields)
            if index == 0:
                trace.mark(EpochOrder.text, **EpochOrder("loader0", drawn).data())
            trace.zero_grad().forward().backward().optimizer_step().end_step()
    return trace


BROKEN = epochs().build()


def test_fires_in_the_second_epoch() -> None:
    finding = fires("TC072", BROKEN)
    assert (finding.first_step, finding.subject.variable, finding.violations) == (4, "loader0", 1)
    assert mentions(finding, "Sampler", "torch", "epoch 1")


def test_quiet_where_nothing_is_drawn_or_the_order_differs() -> None:
    assert quiet("TC072", epochs(drawn=()).build()) is Verdict.NOT_TRIGGERED
    assert quiet("TC072", epochs(shift=3).build()) is Verdict.HELD


class Batches:
    """A batch sampler that draws a permutation, and changes it before use."""

    def __init__(self, change: Callable[[list[int]], Any]) -> None:
        self.change = change
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return _SIZE // 8

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.change(torch.randperm(_SIZE, generator=self.generator).tolist()))
        for first in range(0, len(order) - 7, 8):
            yield order[first : first + 8]


def trained(loader: Any, *, count: int = 3) -> None:
    net_of_program = model()
    optimizer = torch.optim.SGD(net_of_program.parameters(), lr=0.1)
    for _ in range(count):
        for (x,) in loader:
            optimizer.zero_grad()
            net_of_program(x).square().mean().backward()
            optimizer.step()


def loader_of(**options: Any) -> Any:
    return DataLoader(TensorDataset(torch.randn(_SIZE, 4)), **options)


@pytest.mark.parametrize("workers", [0, 1])
def test_fires_on_a_set(tmp_path: Path, workers: int) -> None:
    loader = loader_of(batch_sampler=Batches(set), num_workers=workers)
    finding = fires("TC072", recorded(tmp_path, lambda: trained(loader)))
    assert mentions(finding, "Batches", "sampler.generator")


@pytest.mark.parametrize(
    "options",
    [
        {"batch_sampler": Batches(dict.fromkeys)},
        {"batch_size": 8, "shuffle": True},
        {"batch_size": 8},
        {"batch_sampler": Batches(lambda order: sorted(order[:16]))},
        {"batch_sampler": Batches(lambda order: random.sample(range(_SIZE), _SIZE))},
    ],
    ids=["dict", "shuffled", "in order", "sorted subset", "drawn elsewhere"],
)
def test_quiet_on_healthy_orders(tmp_path: Path, options: dict[str, Any]) -> None:
    events = recorded(tmp_path, lambda: trained(loader_of(**options)))
    assert quiet("TC072", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_orders_are_the_same(tmp_path: Path) -> None:
    """No random number is drawn for the record."""

    def orders() -> list[list[float]]:
        torch.manual_seed(1)
        loader = loader_of(batch_size=8, shuffle=True)
        return [x[:, 0].tolist() for _ in range(3) for (x,) in loader]

    plain, seen = orders(), []
    recorded(tmp_path, lambda: seen.append(orders()))
    assert seen == [plain]
