"""TC221: schedules for updates that are stepped by epoch, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.window import batch, schedule
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

ONE_CYCLE, COSINE, STEPS = "OneCycleLR", "CosineAnnealingLR", "MultiStepLR"
RESTARTS = "CosineAnnealingWarmRestarts"


def made(trace: TraceBuilder, cls: str, **args: Any) -> TraceBuilder:
    return trace.call(
        f"torch.optim.lr_scheduler.{cls}.__init__",
        family=Families.SCHEDULER_CREATED,
        owner="opt0",
        args={"last_epoch": -1, **args},
        where="train.py:42",
    )


def loop(
    trace: TraceBuilder,
    cls: str,
    *,
    epochs: int = 3,
    updates: int = 12,
    batches: int = 1,
    per: str = "epoch",
    **options: Any,
) -> list[Event]:
    """Training by epochs of some updates, of some batches each."""
    for epoch in range(epochs):
        for update in range(updates):
            trace.begin_step().zero_grad()
            for micro in range(batches):
                batch(trace, update * batches + micro, epoch)
                for _ in range(options.get("losses", 1)):
                    trace.forward().backward()
            trace.optimizer_step()
            if per == "update":
                schedule(trace, cls=cls)
        if per == "epoch":
            schedule(trace, cls=cls)
    for _ in range(options.get("more", 0)):
        trace.begin_step().zero_grad().batch().forward().backward().optimizer_step()
    return trace.build()


def run(cls: str, length: dict[str, Any], **options: Any) -> list[Event]:
    return loop(made(net(), cls, **length), cls, **options)


BROKEN = run(ONE_CYCLE, {"total_steps": 36})


def test_fires_where_a_schedule_for_updates_is_stepped_by_epoch(golden: Golden) -> None:
    finding = fires("TC221", BROKEN)
    assert (finding.first_step, finding.violations) == (11, 1)
    assert finding.subject.api == Families.SCHEDULER_STEP
    golden(finding)
    assert mentions(finding, "train.py:42", "train.py:90", 36, 3, '"interval": "step"')


def test_fires_where_a_schedule_for_batches_is_stepped_by_window(golden: Golden) -> None:
    events = run("LambdaLR", {"num_training_steps": 72}, batches=2, per="update")
    assert mentions(golden(fires("TC221", events)), 72, 36)


@pytest.mark.parametrize("length", [35, 37])
def test_fires_where_one_update_is_missing(length: int) -> None:
    fires("TC221", run(COSINE, {"T_max": length}))


@pytest.mark.parametrize(
    ("cls", "length"),
    [(STEPS, {"last_milestone": 3}), (RESTARTS, {"T_0": 2})],
    ids=["milestones", "restarts"],
)
def test_fires_where_a_schedule_for_epochs_is_stepped_by_update(
    cls: str, length: dict[str, Any], golden: Golden
) -> None:
    finding = fires("TC221", run(cls, length, per="update"))
    assert finding.first_step == 0
    golden(finding)
    assert mentions(finding.observed, *length.values(), 36)


@pytest.mark.parametrize(
    "events",
    [
        run(ONE_CYCLE, {"total_steps": 36}, per="update"),
        run(COSINE, {"T_max": 100}),  # ends early, or is interrupted
        run(COSINE, {"T_max": 36}, epochs=2, more=12),
        run(COSINE, {"T_max": 36}, epochs=1, updates=36),
        run(COSINE, {"T_max": 12}, updates=4),
        run(COSINE, {"T_max": 72}, losses=2, per="update"),
        run(STEPS, {"last_milestone": 2}),
        run(STEPS, {"last_milestone": 30}, per="update"),
        run(STEPS, {"last_milestone": 2}, per="update", updates=8),
        run(STEPS, {"last_milestone": 2}, per="update", epochs=2),
        run(RESTARTS, {"T_0": 12}, per="update"),
        run(COSINE, {"T_max": 3}, per="update"),  # is TC217's
        run(COSINE, {}),
        run(ONE_CYCLE, {"total_steps": 36, "last_epoch": 10}),
        loop(made(net(), COSINE, T_max=36), ONE_CYCLE),
        loop(made(made(net(), COSINE, T_max=36), COSINE, T_max=36), COSINE),
        loop(made(net(), COSINE, T_max=36).skipped_steps(1), COSINE),
        net().steps(36).build(),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC221", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_rounds_over_parts_of_the_data_are_no_epochs() -> None:
    """Two loaders in turns, twelve batches each, iterated once; and one that is iterated again."""
    for is_anew in (False, True):
        trace = made(net(), RESTARTS, T_0=5)
        for turn in range(8):
            loader, start = ("loader0", 0) if is_anew else (f"loader{turn % 2}", turn // 2 * 12)
            for index in range(12):
                rows = [(turn * 5 + index * 8 + row) % 400 for row in range(8)]
                batch(trace.begin_step().zero_grad(), start + index, turn * is_anew, loader)
                trace.edit(trace.events[-1], indices=rows, drawn=8)
                trace.forward().backward().optimizer_step()
                schedule(trace, cls=RESTARTS)
        assert quiet("TC221", trace.build()) is Verdict.HELD


def test_quiet_on_a_resumed_run_and_on_steps_that_tell_the_epoch() -> None:
    trace = made(net(), COSINE, T_max=36)
    target = f"torch.optim.lr_scheduler.{COSINE}"
    trace.add(CheckpointEvent, op="load_state_dict", target=target)
    assert quiet("TC221", loop(trace, COSINE)) is Verdict.NOT_TRIGGERED
    events = [
        e.replace(args={"0": 0.5}) if getattr(e, "family", "") == Families.SCHEDULER_STEP else e
        for e in run(RESTARTS, {"T_0": 2}, per="update")
    ]
    assert quiet("TC221", events) is Verdict.NOT_TRIGGERED


def ramp(step: int, *, num_training_steps: int) -> float:
    return 1 - step / num_training_steps


def decay(o: torch.optim.Optimizer) -> Any:
    return lr_scheduler.LambdaLR(o, partial(ramp, num_training_steps=48))


@pytest.mark.parametrize(
    ("make", "per", "is_wrong"),
    [
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, epochs=4, steps_per_epoch=12), "epoch", True),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, epochs=4, steps_per_epoch=12), "update", False),
        (decay, "epoch", True),
        (decay, "update", False),
        (lambda o: lr_scheduler.MultiStepLR(o, [3, 2]), "update", True),
        (lambda o: lr_scheduler.MultiStepLR(o, [3, 2]), "epoch", False),
    ],
)
def test_recorded_runs(
    tmp_path: Path, make: Callable[[torch.optim.Optimizer], Any], per: str, is_wrong: bool
) -> None:
    data = TensorDataset(torch.randn(96, 5), torch.randint(3, (96,)))
    with recording(tmp_path / "run") as run:
        for _ in range(2):  # as in cross-validation: another of everything
            model = nn.Linear(5, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            scheduler, loader = make(optimizer), DataLoader(data, 8)
            for _ in range(4):
                for inputs, labels in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(inputs), labels).backward()
                    optimizer.step()
                    if per == "update":
                        scheduler.step()
                if per == "epoch":
                    scheduler.step()
    if is_wrong:
        assert fires("TC221", run.events).first_step == (11 if per == "epoch" else 0)
    else:
        assert quiet("TC221", run.events) is Verdict.HELD
