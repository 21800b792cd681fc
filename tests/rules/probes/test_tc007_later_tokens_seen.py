"""TC007: later tokens are seen by a model that predicts them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.checking import fires, quiet
from tests.rules.probing import classified, probed, results, trained
from traincheck.schema.findings import Verdict
from traincheck.schema.places import where

BROKEN = probed(
    "later_tokens",
    numbers={"change": 0.2, "positions": 6.0},
    where="Net.norm",
    place="/home/me/model.py:13",
    detail={"operation": "torch.nn.functional.group_norm"},
)


class Decoder(nn.Module):
    def __init__(self, *, is_causal: bool = True, norm: bool = False) -> None:
        super().__init__()
        self.words, self.qkv, self.head = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 20)
        self.norm = nn.GroupNorm(4, 16) if norm else None
        self.is_causal = is_causal

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.words(ids)
        attend = nn.functional.scaled_dot_product_attention
        h = h + attend(*self.qkv(h).chunk(3, -1), is_causal=self.is_causal)
        if self.norm is not None:
            h = self.norm(h.transpose(1, 2)).transpose(1, 2)
        return self.head(h)


def next_tokens(model: nn.Module, step: int) -> torch.Tensor:
    ids = torch.randint(0, 20, (8, 13))
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def same_tokens(model: nn.Module, step: int) -> torch.Tensor:
    ids = torch.randint(0, 20, (8, 12))
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def test_fires_on_a_result() -> None:
    finding = fires("TC007", BROKEN)
    assert finding.subject.module == "Net.norm"
    assert where(finding.evidence) == "/home/me/model.py:13"


def test_fires_on_attention_without_a_mask(tmp_path: Path) -> None:
    assert fires("TC007", trained(tmp_path, Decoder(is_causal=False), next_tokens)).first_step == 2


def test_fires_on_a_norm_over_the_sequence(tmp_path: Path) -> None:
    events = trained(tmp_path, Decoder(norm=True), next_tokens)
    assert fires("TC007", events).first_step == 2
    (first, *_) = results(events, "later_tokens")
    assert (first.where, first.detail["operation"]) == (
        "Decoder.norm",
        "torch.nn.functional.group_norm",
    )


def test_quiet_on_a_causal_model(tmp_path: Path) -> None:
    assert quiet("TC007", trained(tmp_path, Decoder(), next_tokens)) is Verdict.HELD


def test_quiet_where_other_tokens_are_predicted(tmp_path: Path) -> None:
    events = trained(tmp_path, Decoder(is_causal=False), same_tokens)
    assert quiet("TC007", events) is Verdict.NOT_TRIGGERED
    plain = trained(tmp_path / "b", nn.Sequential(nn.Linear(8, 3)), classified)
    assert quiet("TC007", plain) is Verdict.NOT_TRIGGERED


class Shifted(nn.Module):
    """Its results have one position less than its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(20, 16), nn.GRUCell(16, 16)
        self.head = nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state, found = torch.zeros(len(ids), 16), []
        for place in range(ids.shape[1] - 1):
            state = self.cell(self.words(ids[:, place]), state)
            found.append(self.head(state))
        return torch.stack(found, 1)


def test_quiet_on_results_without_a_dimension_of_the_tokens(tmp_path: Path) -> None:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        ids = torch.randint(0, 20, (8, 12))
        return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids[:, 1:].flatten())

    assert quiet("TC007", trained(tmp_path, Shifted(), loss)) is Verdict.NOT_TRIGGERED
