"""TC203: optimizers that hold tensors of no model, recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

Choose = Callable[[nn.Module], list[torch.Tensor]]


def train(folder: Path, choose: Choose, steps: int = 12) -> list[Event]:
    """A model, and an optimizer over what is chosen."""
    with recording(folder / "run") as recorded:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.Adam(choose(model), lr=0.01)
        for _ in range(steps):
            model.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
    return recorded.events


@pytest.mark.parametrize(
    "choose",
    [
        lambda model: [p.detach().clone().requires_grad_() for p in model.parameters()],
        lambda model: list(model.state_dict().values()),
    ],
)
def test_fires_on_copies_of_parameters(tmp_path: Path, choose: Choose) -> None:
    events = train(tmp_path, choose)
    finding = fires("TC203", events)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert mentions(finding, "state_dict()")
    steps = [e for e in events if e.kind == "call" and e.family == Families.OPTIMIZER_STEP]  # type: ignore[union-attr]
    assert all(call.args == {"gradients": 0} for call in steps)  # type: ignore[union-attr]


def test_quiet_on_what_is_trained(tmp_path: Path) -> None:
    events = train(tmp_path, lambda model: list(model.parameters()))
    assert quiet("TC203", events) is Verdict.HELD
    steps = [e for e in events if e.kind == "call" and e.family == Families.OPTIMIZER_STEP]  # type: ignore[union-attr]
    assert all(call.args == {} for call in steps)  # type: ignore[union-attr]


@pytest.mark.parametrize("replaced", [True, False])
def test_an_image_that_is_kept_within_its_range(
    tmp_path: Path, replaced: bool, golden: Golden
) -> None:
    model = nn.Linear(4, 2).requires_grad_(False)
    with recording(tmp_path / "run") as recorded:
        image = torch.rand(1, 4, requires_grad=True)
        optimizer = torch.optim.Adam([image], lr=0.01)
        for _ in range(12):
            if replaced:
                image = image.detach().clamp(0, 1).requires_grad_()
            optimizer.zero_grad()
            model(image).sum().backward()
            optimizer.step()
            if not replaced:
                image.data.clamp_(0, 1)
    if replaced:
        golden(fires("TC203", recorded.events), numbers=False)
    else:
        assert quiet("TC203", recorded.events) is Verdict.HELD
