"""TC067: a schedule that writes to the groups from before a load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.ledger.programs import model, recorded, train
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.loads import (
    OLD_GROUP,
    IneffectiveWrite,
    LoadedHyperparameters,
)

WRITE = IneffectiveWrite("opt0", OLD_GROUP, "lr", "0.1", "0.01", "0.1", "train.py:20")
LOAD = LoadedHyperparameters("opt0", (), "train.py:20")
BROKEN = (
    net()
    .steps(2)
    .mark(WRITE.text, **WRITE.data())
    .steps(2)
    .mark(LOAD.text, **LOAD.data())
    .steps(4)
    .build()
)


class Decay:
    """A schedule of the program. It keeps the groups, or finds them at each step."""

    def __init__(self, optimizer: Any, *, keeps_groups: bool) -> None:
        self.optimizer = optimizer
        self.groups = optimizer.param_groups if keeps_groups else None

    def step(self, step: int) -> None:
        for group in self.groups or self.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + step)


def resumed(*, keeps_groups: bool, made_after: bool = False, is_used: bool = True) -> None:
    trained = model()
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.1)
    schedule = Decay(optimizer, keeps_groups=keeps_groups)
    train(trained, optimizer, 4, before=schedule.step)
    optimizer.load_state_dict(optimizer.state_dict())
    if made_after:
        schedule = Decay(optimizer, keeps_groups=keeps_groups)
    train(trained, optimizer, 8, before=lambda step: schedule.step(step + 4) if is_used else None)


def test_fires_on_an_old_group() -> None:
    finding = fires("TC067", BROKEN)
    assert (finding.subject.variable, finding.violations) == ("opt0", 1)
    assert mentions(finding, "0.01", "train.py:20")


def test_fires_on_a_real_resume(tmp_path: Path) -> None:
    finding = fires("TC067", recorded(tmp_path, lambda: resumed(keeps_groups=True)))
    assert mentions(finding, "old group", "lr")


def test_quiet_where_the_optimizer_is_kept(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: resumed(keeps_groups=False))
    assert quiet("TC067", events) is Verdict.HELD


def test_quiet_where_the_schedule_is_made_after_the_load(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: resumed(keeps_groups=True, made_after=True))
    assert quiet("TC067", events) is Verdict.HELD


def test_quiet_where_nobody_writes(tmp_path: Path) -> None:
    events = recorded(tmp_path, lambda: resumed(keeps_groups=True, is_used=False))
    assert quiet("TC067", events) is Verdict.HELD
