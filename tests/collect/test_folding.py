"""Evaluation forwards that repeat are recorded without the calls within them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.collect.recording import Recording, recording
from traincheck.collect.observers.eval_weights import COMPLETE_FORWARDS, EVERY_NTH
from traincheck.infer.replay_views import with_gaps
from traincheck.schema.events import StepEvent
from traincheck.schema.marks import Marks

LINEAR = "torch.nn.modules.linear.Linear.forward"
RELU = "torch.nn.functional.relu"
TIMES = 100


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise ValueError("no")
        return nn.functional.relu(self.first(x))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def record(folder: Path, **settings: Any) -> Recording:
    """A step, an evaluation of many forwards of which one fails, and a step."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(folder, **settings) as run:
        step(model, optimizer)
        with torch.no_grad():
            for _ in range(TIMES):
                model(torch.ones(1, 4))
            model.fails = True
            with pytest.raises(ValueError, match="no"):
                model(torch.ones(1, 4))
            model.fails = False
        step(model, optimizer)
    return run


def within(run: Recording, api: str, stage: str) -> int:
    return sum(1 for call in run.calls(api) if call.stage == stage)


def test_what_is_recorded_of_an_evaluation_that_repeats(tmp_path: Path) -> None:
    run = record(tmp_path / "t", fold=True)
    complete = COMPLETE_FORWARDS + TIMES // EVERY_NTH - 1
    assert within(run, LINEAR, "eval") == complete
    assert within(run, RELU, "eval") == complete
    roots = [call for call in run.of("call") if call.root and call.stage == "eval"]
    assert len(roots) == TIMES + 1
    assert roots[-1].exception == "ValueError"
    assert within(run, LINEAR, "train") == within(run, RELU, "train") == 2
    assert len(run.marks(Marks.FOLDED)) == 1


def test_nothing_is_left_out_unless_it_is_asked_for(tmp_path: Path) -> None:
    run = record(tmp_path / "t")
    assert within(run, LINEAR, "eval") == TIMES
    assert not run.marks(Marks.FOLDED)


def test_invariants_take_nothing_there_for_missing(tmp_path: Path) -> None:
    run = record(tmp_path / "t", fold=True)
    told = list(with_gaps(run.events))
    place = next(n for n, e in enumerate(told) if getattr(e, "text", "") == Marks.FOLDED)
    gap = told[place + 1]
    assert isinstance(gap, StepEvent)
    assert not gap.recorded
