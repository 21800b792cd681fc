"""TC006: an activation overwrites what is used again."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.checking import fires, quiet
from tests.rules.probing import classified, probed, results, trained
from traincheck.schema.findings import Verdict

BROKEN = probed("in_place", numbers={"change": 0.03, "layers": 1.0}, where="Net.act")


class Block(nn.Module):
    def __init__(self, *, inplace: bool, reuses: bool = True) -> None:
        super().__init__()
        self.first, self.act, self.second = (
            nn.Linear(8, 8),
            nn.ReLU(inplace=inplace),
            nn.Linear(8, 8),
        )
        self.head, self.reuses = nn.Linear(8, 3), reuses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        out = self.second(self.act(h))
        return self.head(h + out if self.reuses else out)


class Statement(Block):
    """Calls the activation for what it overwrites."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        self.act(h)
        return self.head(self.second(h))


def test_fires_on_a_result() -> None:
    assert fires("TC006", BROKEN).subject.module == "Net.act"


def test_fires_on_a_skip_connection(tmp_path: Path) -> None:
    events = trained(tmp_path, Block(inplace=True), classified)
    assert fires("TC006", events).first_step == 2
    (first, *_) = results(events, "in_place")
    assert first.where == "Block.act"


def test_quiet_where_nothing_is_used_again(tmp_path: Path) -> None:
    plain = trained(tmp_path / "a", Block(inplace=True, reuses=False), classified)
    assert quiet("TC006", plain) is Verdict.HELD
    copied = trained(tmp_path / "b", Block(inplace=False), classified)
    assert quiet("TC006", copied) is Verdict.NOT_TRIGGERED


def test_quiet_where_only_the_overwritten_value_is_used(tmp_path: Path) -> None:
    events = trained(tmp_path, Statement(inplace=True), classified)
    assert quiet("TC006", events) is Verdict.NOT_TRIGGERED
