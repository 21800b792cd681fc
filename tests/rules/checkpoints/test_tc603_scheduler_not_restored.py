"""TC603: a resume that leaves the scheduler behind."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.resuming import PARTS, Resuming
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def resumed(*, load: bool = False, last_epoch: int = -1, optimizer: bool = True) -> list[Event]:
    builder = Resuming().begin()
    builder.optimizer()
    if optimizer:
        builder.load_optimizer()
    builder.scheduler(last_epoch)
    if load:
        builder.load_scheduler()
    return builder.train(scheduled=True).steps(1).build()


BROKEN = resumed()


def test_fires_when_the_schedule_begins_anew() -> None:
    finding = fires("TC603", BROKEN)
    assert finding.first_step == 0
    assert mentions(finding, "StepLR")


def test_quiet_when_it_is_restored_or_told_where_to_begin() -> None:
    assert quiet("TC603", resumed(load=True)) is Verdict.HELD
    assert quiet("TC603", resumed(last_epoch=3)) is Verdict.NOT_TRIGGERED


def test_quiet_on_fine_tuning() -> None:
    assert quiet("TC603", resumed(optimizer=False)) is Verdict.NOT_TRIGGERED


def test_quiet_when_the_file_holds_no_scheduler() -> None:
    parts = {name: part for name, part in PARTS.items() if name != "scheduler"}
    builder = Resuming().begin(parts=parts)
    builder.optimizer()
    builder.load_optimizer().scheduler().train(scheduled=True)
    assert quiet("TC603", builder.build()) is Verdict.NOT_TRIGGERED
