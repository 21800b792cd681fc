"""TC005: the vector of the padding index takes part."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.checking import fires, quiet
from tests.rules.probing import classified, probed, results, trained
from traincheck.schema.findings import Verdict

BROKEN = probed(
    "padding_row", numbers={"loss": 0.66, "without": 0.76, "change": 0.15}, where="Net.words"
)


class Bag(nn.Module):
    def __init__(self, *, is_zero: bool = False, masks: bool = False) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(40, 16, padding_idx=0), nn.Linear(16, 3)
        nn.init.normal_(self.words.weight)
        if is_zero:
            with torch.no_grad():
                self.words.weight[0].zero_()
        self.masks = masks

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.words(ids)
        if self.masks:
            h = h * (ids != 0).unsqueeze(-1)
        return self.head(torch.tanh(h.sum(1)))


def loss(model: nn.Module, step: int) -> torch.Tensor:
    ids = torch.randint(1, 40, (16, 12)) * (torch.arange(12) < torch.randint(3, 13, (16, 1)))
    return nn.functional.cross_entropy(model(ids), torch.randint(0, 3, (16,)))


def test_fires_on_a_result() -> None:
    assert fires("TC005", BROKEN).subject.module == "Net.words"


def test_fires_on_a_vector_of_random_numbers(tmp_path: Path) -> None:
    events = trained(tmp_path, Bag(), loss)
    assert fires("TC005", events).first_step == 2
    (first, *_) = results(events, "padding_row")
    assert first.where == "Bag.words"


def test_quiet_where_it_is_zero_or_masked(tmp_path: Path) -> None:
    zero = trained(tmp_path / "a", Bag(is_zero=True), loss)
    assert quiet("TC005", zero) is Verdict.NOT_TRIGGERED
    assert quiet("TC005", trained(tmp_path / "b", Bag(masks=True), loss)) is Verdict.HELD


class Tied(Bag):
    """Another layer holds the words: the same tensor, or the one that they were copied from."""

    def __init__(self, *, is_copy: bool) -> None:
        super().__init__()
        self.out = nn.Linear(16, 40, bias=False)
        weight = self.words.weight
        self.out.weight = nn.Parameter(weight.detach().clone(), False) if is_copy else weight


def test_quiet_where_another_layer_holds_the_vector(tmp_path: Path) -> None:
    for is_copy in (False, True):
        events = trained(tmp_path / str(is_copy), Tied(is_copy=is_copy), loss)
        assert quiet("TC005", events) is Verdict.NOT_TRIGGERED


def test_quiet_without_embeddings(tmp_path: Path) -> None:
    events = trained(tmp_path, nn.Sequential(nn.Linear(8, 3)), classified)
    assert quiet("TC005", events) is Verdict.NOT_TRIGGERED
