"""TC004: padding takes part although it is masked."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.checking import fires, quiet
from tests.rules.probing import classified, probed, results, trained
from traincheck.schema.findings import Verdict

BROKEN = probed(
    "padding",
    numbers={"change": 0.6, "padded": 0.4},
    where="Net.attention",
    place="/home/me/model.py:28",
    detail={"operation": "torch.matmul", "how": "filled"},
)


class Encoder(nn.Module):
    """One layer of attention by hand. fill: of masked scores. makes: the mask, from the ids."""

    def __init__(self, *, fill: float = -1e9, makes: bool = False, dim: int = 2) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(40, 16, padding_idx=0), nn.Linear(16, 48)
        self.head = nn.Linear(16, 2)
        self.fill, self.makes, self.dim = fill, makes, dim

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None:
            mask = ids != 0
        q, k, v = self.qkv(self.words(ids)).chunk(3, -1)
        score = (q @ k.transpose(1, 2) / 4).masked_fill(
            mask.unsqueeze(self.dim - 1) == 0, self.fill
        )
        return self.head((score.softmax(-1) @ v)[:, 0])


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(1, 40, (8, 12))
    mask = torch.arange(12) < torch.randint(3, 13, (8, 1))
    mask[0] = torch.arange(12) < 5
    mask[1] = True
    return ids * mask, mask.float()


def with_mask(model: nn.Module, step: int) -> torch.Tensor:
    return nn.functional.cross_entropy(model(*batch()), torch.randint(0, 2, (8,)))


def without(model: nn.Module, step: int) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch()[0]), torch.randint(0, 2, (8,)))


def test_fires_on_a_result() -> None:
    assert fires("TC004", BROKEN).subject.module == "Net.attention"


def test_fires_on_a_fill_that_is_nearly_zero(tmp_path: Path) -> None:
    events = trained(tmp_path, Encoder(fill=1e-9), with_mask)
    assert fires("TC004", events).first_step == 2
    (first, *_) = results(events, "padding")
    assert first.detail == {"operation": "torch.Tensor.matmul", "how": "filled", "fill": "1e-09"}


def test_fires_on_a_mask_over_queries(tmp_path: Path) -> None:
    events = trained(tmp_path, Encoder(dim=3), without)
    assert fires("TC004", events).first_step == 2
    (first, *_) = results(events, "padding")
    assert first.detail["how"] == "trimmed"


def test_quiet_where_keys_are_masked(tmp_path: Path) -> None:
    assert quiet("TC004", trained(tmp_path / "a", Encoder(), with_mask)) is Verdict.HELD
    assert quiet("TC004", trained(tmp_path / "b", Encoder(), without)) is Verdict.HELD


class Bag(nn.Module):
    """Without a mask: padding is a word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(40, 16), nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids).mean(1))


class Convolved(Bag):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.body(self.words(ids).transpose(1, 2)).masked_fill((ids == 0).unsqueeze(1), -9.0)
        return self.head(h.amax(2))


def test_quiet_on_bags_and_convolutions(tmp_path: Path) -> None:
    assert quiet("TC004", trained(tmp_path / "a", Bag(), without)) is Verdict.NOT_TRIGGERED
    assert quiet("TC004", trained(tmp_path / "b", Convolved(), without)) is Verdict.NOT_TRIGGERED


def test_quiet_without_padding(tmp_path: Path) -> None:
    events = trained(tmp_path, nn.Sequential(nn.Linear(8, 3)), classified)
    assert quiet("TC004", events) is Verdict.NOT_TRIGGERED
