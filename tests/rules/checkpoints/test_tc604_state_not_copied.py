"""TC604: a model that is given back its own tensors."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict


def run(*, steps: int = 3, shared: int = 4, changed: int = 0) -> list[Event]:
    builder = net().steps(steps)
    builder.add(
        CheckpointEvent,
        op="load_state_dict",
        target="Net",
        entries=4,
        matched=4,
        shared=shared,
        changed=changed,
        where="train.py:70",
    )
    return builder.steps(1).build()


BROKEN = run()


def test_fires_when_the_state_is_the_models_own() -> None:
    finding = fires("TC604", BROKEN)
    assert finding.first_step == 2
    assert finding.subject.module == "Net"
    assert mentions(finding, "train.py:70")


def test_quiet_on_a_copy() -> None:
    assert quiet("TC604", run(shared=0, changed=4)) is Verdict.HELD
    assert quiet("TC604", run(shared=0)) is Verdict.HELD


def test_quiet_before_the_first_step() -> None:
    assert quiet("TC604", run(steps=0)) is Verdict.NOT_TRIGGERED


def load(case: str, model: nn.Module, state: dict[str, torch.Tensor]) -> nn.Module:
    """One load after training; the model that is loaded."""
    other = copy.deepcopy(model) if case in ("own state", "other model") else model
    given = {
        "kept": state,
        "copied": copy.deepcopy(state),
        "same object": model.state_dict(),
        "own state": other.state_dict(),
        "other model": model.state_dict(),
    }[case]
    other(torch.ones(1, 2))
    other.load_state_dict(given)
    return other


@pytest.mark.parametrize(
    ("case", "is_wrong"),
    [
        ("kept", True),
        ("same object", True),
        ("own state", True),
        ("copied", False),
        ("other model", False),
    ],
)
def test_the_cause_is_that_of_the_load(
    tmp_path: Path, case: str, is_wrong: bool, golden: Golden
) -> None:
    with recording(tmp_path / "run") as run:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = model.state_dict()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).pow(2).mean().backward()
            optimizer.step()
        load(case, model, state)
    if not is_wrong:
        assert quiet("TC604", run.events) is Verdict.HELD
        return
    golden(fires("TC604", run.events), numbers=False)


def test_a_trace_that_does_not_say_how_the_state_was_made_leaves_the_cause_open(
    golden: Golden,
) -> None:
    golden(fires("TC604", BROKEN))
