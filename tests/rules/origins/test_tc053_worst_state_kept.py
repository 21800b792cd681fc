"""TC053: the worst state is kept as the best. Hand-made traces and real programs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.origins.programs import State, recorded, small
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict
from traincheck.schema.values import TensorSummary, tensor_json

FALLING = (1.0, 0.8, 0.6, 0.5, 0.4)


def evaluation(builder: TraceBuilder, loss: float, digest: str) -> None:
    result = tensor_json(TensorSummary("float32", (), value=loss))
    builder.train(False).mark("evaluated", model="Net", values={"Net.fc1.weight": digest})
    builder.set_stage("eval")
    builder.call("torch.nn.functional.cross_entropy", grad_enabled=False, result=result)
    builder.train(True)


def kept(
    losses: Sequence[float] = FALLING, *, place: int = 0, path: str = "", steps_after: int = 0
) -> list[Event]:
    """One evaluation a step; the state of one of them is loaded at the end, or saved then."""
    builder = net()
    for number, loss in enumerate(losses):
        builder.step()
        evaluation(builder, loss, f"xxh3-128:{number}")
        if path and number == place:
            builder.add(CheckpointEvent, op="save", path=path, where="train.py:50")
    if not path:
        values = {"Net.fc1.weight": f"xxh3-128:{place}", "Net.fc1.bias": "xxh3-128:b"}
        builder.load("Net", values=values, changed=2, matched=2, where="train.py:60")
    return builder.steps(steps_after).build()


BROKEN = kept()


def test_fires_on_the_restored_state(golden: Golden) -> None:
    finding = golden(fires("TC053", BROKEN))
    assert (finding.subject.module, finding.severity) == ("Net", "warning")
    assert mentions(finding, "1 in step 0")


def test_fires_on_the_file_that_holds_the_best() -> None:
    assert fires("TC053", kept(path="out/model_best.pt")).subject.api == "torch.save"


@pytest.mark.parametrize(
    "events",
    [
        kept(place=4),  # the best one
        kept(place=2),  # neither
        kept((0.4, 0.5, 0.6, 0.8, 1.0), place=4),  # overfitting: another metric selects
        kept((0.4, 0.5, 0.6, 0.8, 1.0), place=0),
        kept((1.0, 0.99, 0.98, 0.97, 0.96)),  # hardly any difference
        kept((1.0, 0.5, 0.9, 0.4, 0.8)),  # up and down
        kept(path="out/best.pt", place=4),
    ],
)
def test_quiet_on_other_choices(events: list[Event]) -> None:
    assert quiet("TC053", events) is Verdict.HELD


@pytest.mark.parametrize(
    "events",
    [
        kept(steps_after=1),  # a rewind
        kept(path="out/epoch1.pt"),
        kept(path="out/bestiary.pt"),
    ],
)
def test_quiet_where_nothing_is_said_to_be_the_best(events: list[Event]) -> None:
    assert quiet("TC053", events) is Verdict.NOT_TRIGGERED


def trained(keeps: Callable[[float, float], bool], first: float) -> None:
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    x = torch.randn(60, 6)
    y = x[:, :3].argmax(1)
    best, state = first, State()
    for _ in range(6):
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = F.cross_entropy(model(x), y).item()
        model.train()
        if keeps(loss, best):
            best, state = loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(state)


def test_fires_on_a_program_with_the_comparison_reversed(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: trained(lambda loss, best: loss > best, 0.0))
    assert fires("TC053", events).subject.module == "Sequential"


def test_quiet_on_early_stopping(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: trained(lambda loss, best: loss < best, 1e9))
    assert quiet("TC053", events) is Verdict.HELD
