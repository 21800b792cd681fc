"""TC059: parts that a partial load left out, and that nothing trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.origins.programs import recorded
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def left_out(name: str = "Net.fc2.weight") -> list[Event]:
    builder = net().steps(2)
    fields = {"model": "Net", "where": "train.py:20", "loaded": 2, "parameters": 1}
    return builder.mark("part not loaded", **fields, names=[name]).steps(1).build()


BROKEN = left_out()


def test_fires_on_a_part_that_is_called(golden: Golden) -> None:
    finding = golden(fires("TC059", BROKEN))
    assert (finding.subject.module, finding.severity) == ("Net.fc2", "warning")


def test_quiet_on_a_part_that_is_never_called() -> None:
    assert quiet("TC059", left_out("Net.unused.weight")) is Verdict.HELD


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.neck, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.neck(self.body(x)))
        return out


def checkpoint(*without: str) -> dict[str, torch.Tensor]:
    state = Net().state_dict()
    return {name: value for name, value in state.items() if not name.startswith(without)}


def tuned(
    *, frozen: str = "neck", prepare: Callable[[Net], object] | None = None, missing: str = "neck"
) -> None:
    """Load a checkpoint without the neck, freeze parts, and train the rest."""
    model = Net()
    if prepare is not None:
        prepare(model)
    model.load_state_dict(checkpoint(missing), strict=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(frozen.split())))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()


def zero(model: Net) -> None:
    nn.init.zeros_(model.neck.weight)
    nn.init.zeros_(model.neck.bias)


def test_fires_on_a_frozen_part_without_weights(tmp_path: Path) -> None:
    finding = fires("TC059", recorded(tmp_path, lambda: tuned(frozen="body neck")))
    assert finding.subject.module == "Net.neck"
    assert mentions(finding, "sets 6 parameters")


@pytest.mark.parametrize(
    "program",
    [
        lambda: tuned(frozen="body"),  # the neck is new, and trained
        lambda: tuned(missing="nothing"),
        lambda: tuned(prepare=lambda m: m.neck.load_state_dict(nn.Linear(8, 8).state_dict())),
        lambda: tuned(prepare=zero),
    ],
    ids=["trained", "complete", "loaded alone", "zeros"],
)
def test_quiet_on_healthy_programs(tmp_path: Path, program: Callable[[], None]) -> None:
    assert quiet("TC059", recorded(tmp_path, program)) is Verdict.NOT_TRIGGERED
