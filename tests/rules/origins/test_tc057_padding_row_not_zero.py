"""TC057: a padding row that was filled, takes part, and is never trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden
from tests.rules.origins.programs import recorded
from tests.rules.origins.test_tc056_new_rows_frozen import ROWS
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

PADDED = {
    **ROWS,
    "frozen": False,
    "earlier": None,
    "new_ids": 0,
    "new_rows": [],
    "padding": 0,
    "padding_ids": 100,
    "padding_norm": 2.2,
    "usual_norm": 2.3,
    "padding_gradient": 0.6,
}


def padded(*norms: float, **changes: object) -> list[Event]:
    builder = net()
    for norm in norms or (2.2, 2.2):
        builder.step()
        builder.mark("embedding rows", **{**PADDED, "padding_norm": norm, **changes})
    return builder.build()


BROKEN = padded()


def test_fires_on_a_filled_row(golden: Golden) -> None:
    finding = golden(fires("TC057", BROKEN))
    assert (finding.subject.variable, finding.first_step) == ("Net.fc1.weight", 0)


@pytest.mark.parametrize(
    "events",
    [
        padded(0.0, 0.0),
        padded(2.2),  # seen once
        padded(2.2, 1.5),  # something trains it
        padded(padding_gradient=0.0),  # masked
        padded(padding_gradient=None),
        padded(is_loaded=True),
        padded(frozen=True),
    ],
)
def test_quiet_on_other_rows(events: list[Event]) -> None:
    assert quiet("TC057", events) is Verdict.HELD


def test_not_triggered_without_padding() -> None:
    assert quiet("TC057", padded(padding_ids=0)) is Verdict.NOT_TRIGGERED


class Bag(nn.Module):
    """masks: whether padding is left out of the mean."""

    def __init__(self, *, fills: bool = True, masks: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8, padding_idx=-20), nn.Linear(8, 3)
        self.masks = masks
        if fills:
            nn.init.xavier_uniform_(self.embed.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors = self.embed(ids)
        if self.masks:
            vectors = vectors * (ids != 0).unsqueeze(-1)
        out: torch.Tensor = self.head(vectors.mean(1))
        return out


def train(model: nn.Module, *, decay: float = 0.0) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=decay)
    for _ in range(3):
        ids = torch.randint(1, 20, (16, 9))
        ids[:, 6:] = 0
        optimizer.zero_grad()
        model(ids).square().mean().backward()
        optimizer.step()


def loaded() -> Bag:
    model = Bag()
    model.load_state_dict(Bag().state_dict())
    return model


def test_fires_on_a_mean_over_padding(tmp_path: Path) -> None:
    finding = fires("TC057", recorded(tmp_path, lambda: train(Bag(), decay=0.1)))
    assert finding.subject.variable == "Bag.embed.weight"


@pytest.mark.parametrize(
    "program",
    [lambda: train(Bag(fills=False)), lambda: train(Bag(masks=True)), lambda: train(loaded())],
    ids=["zero", "masked", "loaded"],
)
def test_quiet_on_healthy_programs(tmp_path: Path, program: Callable[[], None]) -> None:
    assert quiet("TC057", recorded(tmp_path, program)) is Verdict.HELD


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    def run() -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(3)
        model = Bag()
        train(model)
        return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

    plain, state = run()
    with recording(tmp_path) as record:
        watched, watched_state = run()
    assert record.marks("embedding rows")
    assert all(map(torch.equal, plain, watched))
    assert torch.equal(state, watched_state)
