"""Numbers of calls: what is broadcast, which dims are left out, which labels count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.collect.recording import recording
from tests.collect.test_operations import ROWS, forget_compilations, train, uses

__all__ = ["forget_compilations"]  # of each test here, too


def _square(h: Tensor) -> Tensor:
    found = h[:8, 0] - h[:8]
    return h * found.mean(1).sum()


def _apart(h: Tensor) -> Tensor:
    found = h[:8, :1] - h[:8]
    return h * found.mean(1).sum()


def _outer(h: Tensor) -> Tensor:
    found = h[:, :1] - h[:, 0]
    return h * found.mean(1).sum()


def _masked(mask: Tensor, value: float = -1e9) -> Callable[[Tensor], Tensor]:
    return lambda h: h.masked_fill(mask, value).clamp(min=-10)


def _images(norm: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda h: h + norm(h.view(ROWS, 2, 2, 2)).mean()


def numbers_of(folder: Path, look: str, inner: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """The numbers of a look at the first line of this file that shows it, in the first step."""
    with recording(folder) as run:
        train(inner)
    found = [use for use in uses(run, look) if Path(__file__).name in use["where"]]
    return dict(found[0]["numbers"])


FEW_ROWS, FEW_COLUMNS = torch.arange(ROWS)[:, None] > 11, torch.arange(8) > 5


@pytest.mark.parametrize(
    ("look", "inner", "number", "value"),
    [
        ("broadcast", lambda h: h - h.mean(), "of_all_rows", 1),
        ("broadcast", lambda h: h * (-0.5 * h.sum()), "of_all_rows", 1),
        ("broadcast", lambda h: h - h.mean(1, keepdim=True), "of_all_rows", 0),
        ("broadcast", lambda h: h - h[:, 0].mean(), "of_all_rows", 0),
        ("broadcast", lambda h: h - h.detach().mean(), "of_all_rows", 0),
        ("broadcast", lambda h: h * h.mean().exp(), "of_all_rows", 0),
        ("broadcast", _square, "square", 1),
        ("broadcast", _apart, "square", 0),
        ("broadcast", _outer, "outer", 1),
        ("broadcast", _apart, "outer", 0),
        ("norm", _images(lambda h: h.norm(2, dim=1)), "last", 0),
        ("norm", _images(lambda h: torch.norm(h, dim=1)), "left", 2),
        ("norm", _images(lambda h: h.flatten(1).norm(2, dim=1)), "left", 0),
        ("norm", _images(lambda h: h.norm(2, dim=-1)), "last", 1),
        ("mask of rows", _masked(FEW_ROWS), "whole", 0.25),
        ("mask of rows", _masked(FEW_ROWS), "part", 0),
        ("mask of rows", _masked(FEW_COLUMNS), "part", 1),
        ("mask of rows", _masked(FEW_COLUMNS | FEW_ROWS), "part", 0.75),
        ("limit of a dtype", lambda h: h.clamp(max=1 - 1e-9), "is_one", 1),
        ("limit of a dtype", lambda h: h.clamp(max=1 - 1e-6), "is_one", 0),
        ("limit of a dtype", lambda h: h.clamp(max=1.0), "is_one", 0),
        ("limit of a dtype", lambda h: h.bfloat16().clamp_max(1 - 1e-6).float(), "is_one", 1),
        ("limit of a dtype", lambda h: h.half().clamp(min=1e-9).float(), "is_zero", 1),
        ("limit of a dtype", lambda h: h.clamp(min=0), "is_zero", 0),
    ],
)  # fmt: skip
def test_numbers_of_a_function(
    tmp_path: Path, look: str, inner: Callable[[Tensor], Tensor], number: str, value: float
) -> None:
    assert numbers_of(tmp_path, look, inner)[number] == pytest.approx(value)


@pytest.mark.parametrize("inner", [_masked(FEW_ROWS, 0.0), _masked(FEW_ROWS[:, 0:1] & False)])
def test_a_mask_that_sets_no_score_far_below_is_not_looked_at(
    tmp_path: Path, inner: Callable[[Tensor], Tensor]
) -> None:
    with recording(tmp_path) as run:
        train(inner)
    assert not any(use["numbers"]["whole"] for use in uses(run, "mask of rows"))


class Codes(nn.Module):
    """Two levels that read one table."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.inner, self.writes = nn.Linear(6, 6), writes
        self.register_buffer("book", torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        for level in range(2):
            x = x + F.embedding(torch.arange(len(x)) % 4, self.book)
            if level == self.writes:
                self.book.mul_(0.9)
        return x


@pytest.mark.parametrize(("writes", "written"), [(0, 1.0), (1, 0.0), (9, 0.0)])
def test_a_table_that_is_written_within_a_step(tmp_path: Path, writes: int, written: float) -> None:
    net = Codes(writes)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path) as run:
        for _ in range(3):
            net(torch.randn(ROWS, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [use["numbers"].get("written") for use in uses(run, "table")] == [written] * 3


def test_two_tables_in_one_line_are_two(tmp_path: Path) -> None:
    tables = torch.randn(4, 6), torch.randn(4, 6)
    net = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path) as run:
        for _ in range(3):
            x = sum(F.embedding(torch.arange(ROWS) % 4, table) for table in tables)
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = uses(run, "table")
    assert [(use["calls"], use["numbers"]) for use in found] == [(2, {})] * 2


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))

    def forward(self, ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.net(ids).transpose(1, 2), labels)


LEFT = torch.arange(9) >= torch.tensor([2, 5, 0, 3])[:, None]


@pytest.mark.parametrize(
    ("ignored", "counted", "first"),
    [
        (~LEFT, 0, 1),
        (torch.zeros(4, 9).bool(), 1, 1),
        (torch.arange(9) < 5, 0, 0.25),
        (~LEFT | (torch.arange(9) < 4), 0, 0.25),
    ],
)
def test_labels_at_places_of_a_mask(
    tmp_path: Path, ignored: Tensor, counted: float, first: float
) -> None:
    net = Reader()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path) as run:
        for _ in range(3):
            ids = torch.randint(0, 20, (4, 9))
            net(ids, LEFT.long(), labels=ids.masked_fill(ignored, -100)).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = uses(run, "labels")
    assert [use["of"] for use in found] == ["attention_mask"] * 3
    assert found[0]["numbers"] == pytest.approx(
        {"binary": 1, "counted": counted, "first_counts": first}
    )
