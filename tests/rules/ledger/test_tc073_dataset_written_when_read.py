"""TC073: samples that change because they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.ledger.programs import model, recorded
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.data import DatasetReads

READS = DatasetReads("__main__.Digits", 1, 128, 7, 64, 32, 32, "images")
BROKEN = net().steps(2).mark(READS.text, **READS.data()).steps(2).build()
_SIZE = 64


class Stored(Dataset[Any]):
    """Keeps its items in a tensor, an array or a list of arrays."""

    def __init__(self, kind: str = "tensor") -> None:
        items = torch.randn(_SIZE, 4)
        self.items: Any = items
        if kind == "array":
            self.items = items.numpy()
        elif kind == "list":
            self.items = [row.numpy() for row in items]
        elif kind == "dict":
            self.items = {"x": items}
        elif kind == "columns":
            self.items = (items, items.sum(1))
        self.column: Any = {"dict": "x", "columns": 0}.get(kind)

    def __len__(self) -> int:
        return _SIZE


class InPlace(Stored):
    def __getitem__(self, index: int) -> Any:
        items = self.items if self.column is None else self.items[self.column]
        item = items[index]
        item -= 0.5
        return torch.as_tensor(item)


class Copied(Stored):
    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(self.items[index]) - 0.5


class Noisy(Stored):
    """Adds noise in place: random transforms are not judged."""

    def __getitem__(self, index: int) -> Any:
        item = self.items[index]
        item += float(torch.randn(()))
        return torch.as_tensor(item)


class Cached(Stored):
    """Fills a cache when an item is first read."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.zeros(_SIZE, 4)
        self.done = [False] * _SIZE

    def __getitem__(self, index: int) -> Any:
        if not self.done[index]:
            self.cache[index] = self.items[index] * 2
            self.done[index] = True
        return self.cache[index]


class Growing(Stored):
    """Scales its samples by the epoch, which it is told."""

    epoch = 0

    def __getitem__(self, index: int) -> Any:
        return self.items[index] * self.epoch


def trained(dataset: Any, *, count: int = 4, workers: int = 0) -> list[float]:
    """Epochs over a dataset; sums of its batches."""
    net_of_program = model()
    optimizer = torch.optim.SGD(net_of_program.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
    sums = []
    for epoch in range(count):
        if isinstance(dataset, Growing):
            dataset.epoch = epoch
        for x in loader:
            optimizer.zero_grad()
            net_of_program(x).square().mean().backward()
            optimizer.step()
            sums.append(float(x.sum()))
    return sums


def test_fires_on_changed_samples() -> None:
    finding = fires("TC073", BROKEN)
    assert (finding.first_step, finding.violations) == (1, 1)
    assert finding.subject.api == "__main__.Digits.__getitem__"
    assert mentions(finding, "Digits.images", 32, 7)


@pytest.mark.parametrize("kind", ["tensor", "array", "list", "dict", "columns"])
@pytest.mark.parametrize("is_part", [False, True])
def test_fires_on_real_datasets(tmp_path: Path, kind: str, is_part: bool) -> None:
    dataset: Any = InPlace(kind)
    if is_part:
        dataset = Subset(dataset, range(8, _SIZE))
    finding = fires("TC073", recorded(tmp_path, lambda: trained(dataset)))
    assert mentions(finding, "items")


@pytest.mark.parametrize(
    "dataset",
    [Copied(), Copied("array"), Noisy(), Cached(), Subset(Copied(), range(20))],
    ids=["copied", "array", "noisy", "cached", "part"],
)
def test_quiet_on_healthy_datasets(tmp_path: Path, dataset: Any) -> None:
    assert quiet("TC073", recorded(tmp_path, lambda: trained(dataset))) is Verdict.HELD


def test_quiet_on_a_dataset_that_is_told_the_epoch(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: trained(Growing()))
    assert quiet("TC073", events) is Verdict.NOT_TRIGGERED


def test_quiet_on_workers(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: trained(InPlace(), workers=1))
    assert quiet("TC073", events) is Verdict.NOT_TRIGGERED


def test_samples_are_the_same(tmp_path: Path) -> None:
    """Batches, weights and random state, with and without recording."""

    def run() -> tuple[list[float], list[float]]:
        torch.manual_seed(2)
        sums = trained(Noisy())
        return sums, torch.rand(2).tolist()

    plain, seen = run(), []
    recorded(tmp_path, lambda: seen.append(run()))
    assert seen == [plain]


def test_an_exception_of_the_dataset_passes(tmp_path: Path) -> None:
    class Broken(Stored):
        def __getitem__(self, index: int) -> Any:
            raise ValueError(index)

    def run() -> None:
        with pytest.raises(ValueError, match=r"\d"):
            trained(Broken())

    recorded(tmp_path, run)
