"""TC056: rows that a resized embedding gains, and that nothing trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.origins.programs import recorded
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

ROWS = {
    "name": "Net.fc1.weight",
    "rows": 43,
    "frozen": True,
    "earlier": 40,
    "new_ids": 12,
    "new_rows": [40, 41, 42],
    "ids": 240,
    "padding": None,
    "padding_ids": 0,
    "padding_norm": 0.0,
    "usual_norm": 0.0,
    "padding_gradient": None,
    "is_loaded": False,
}


def looked_up(
    times: int = 2, *, builder: TraceBuilder | None = None, **changes: object
) -> list[Event]:
    frozen = net() if builder is None else builder
    for _ in range(times):
        frozen.begin_step().mark("embedding rows", **{**ROWS, **changes})
        frozen.batch().zero_grad().forward().backward().optimizer_step()
    return frozen.steps(1).build()


def frozen_net() -> TraceBuilder:
    builder = TraceBuilder().process().model("Net", frozen=["Net.fc1.weight"])
    return builder.optimizer(names=["Net.fc1.bias", "Net.fc2.weight", "Net.fc2.bias"])


BROKEN = looked_up(builder=frozen_net())


def test_fires_on_frozen_rows(golden: Golden) -> None:
    finding = golden(fires("TC056", BROKEN))
    assert (finding.subject.variable, finding.first_step) == ("Net.fc1.weight", 0)


def test_quiet_on_rows_that_are_trained_or_not_used() -> None:
    assert quiet("TC056", looked_up()) is Verdict.HELD  # held by the optimizer at the end
    assert quiet("TC056", looked_up(1, builder=frozen_net())) is Verdict.HELD
    unused = looked_up(builder=frozen_net(), new_ids=0)
    assert quiet("TC056", unused) is Verdict.NOT_TRIGGERED
    assert quiet("TC056", looked_up(frozen=False)) is Verdict.NOT_TRIGGERED


class Tagger(nn.Module):
    def __init__(self, rows: int = 20) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(rows, 8), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embed(ids).mean(1))
        return out


def resized(fill: Callable[[nn.Embedding], object] | None = None) -> Tagger:
    """The first 20 rows are copied, 3 are new."""
    model = Tagger()
    larger = nn.Embedding(23, 8)
    with torch.no_grad():
        larger.weight[:20] = model.embed.weight
        if fill is not None:
            fill(larger)
    model.embed = larger
    return model


def train(model: nn.Module, *, most: int = 23, steps: int = 3) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(0, most, (16, 9))).square().mean().backward()
        optimizer.step()


def freeze(model: Tagger) -> Tagger:
    model.embed.requires_grad_(False)
    return model


def copies(embed: nn.Embedding) -> None:
    embed.weight[20:] = embed.weight[:3]


class LowRank(Tagger):
    """The frozen weight, and a trained product of thin matrices beside it."""

    def __init__(self, model: Tagger) -> None:
        super().__init__()
        self.embed, self.head = model.embed, model.head
        self.thin, self.out = nn.Parameter(torch.randn(23, 2)), nn.Parameter(torch.zeros(2, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        more = nn.functional.embedding(ids, self.thin) @ self.out
        out: torch.Tensor = self.head((self.embed(ids) + more).mean(1))
        return out


def test_fires_on_a_resized_embedding_that_is_frozen(tmp_path: Path) -> None:
    finding = fires("TC056", recorded(tmp_path, lambda: train(freeze(resized()))))
    assert finding.subject.variable == "Tagger.embed.weight"
    assert mentions(finding, "20, 21, 22")


def test_fires_on_rows_behind_those_of_a_load(tmp_path: Path) -> None:
    def program() -> None:
        saved, model = Tagger(20).state_dict(), Tagger(20)
        model.load_state_dict(saved)
        weight = torch.cat([model.embed.weight.detach(), torch.randn(3, 8)])
        model.embed = nn.Embedding.from_pretrained(weight, freeze=True)
        train(model)

    assert mentions(fires("TC056", recorded(tmp_path, program)), "20, 21, 22")


@pytest.mark.parametrize(
    "program",
    [
        lambda: train(resized()),
        lambda: train(freeze(resized()), most=20),
        lambda: train(freeze(resized(copies))),
        lambda: train(freeze(Tagger(23))),
        lambda: train(LowRank(freeze(resized()))),
    ],
    ids=["trained", "not looked up", "copies", "never resized", "low rank"],
)
def test_quiet_on_healthy_programs(tmp_path: Path, program: Callable[[], None]) -> None:
    assert quiet("TC056", recorded(tmp_path, program)) is Verdict.NOT_TRIGGERED
