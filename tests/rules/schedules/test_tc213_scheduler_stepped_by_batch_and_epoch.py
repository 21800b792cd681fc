"""TC213: a schedule that is advanced by batch and by epoch."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from tests.golden import mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

NAME = "torch.optim.lr_scheduler.StepLR.step"


def loop(
    *, batch: str | None, epoch: str | None, other: str = NAME, epochs: int = 4
) -> list[Event]:
    """Epochs of three batches; names the lines at which the schedule is advanced."""
    trace = net()
    for _ in range(epochs):
        for _ in range(3):
            trace.begin_step().zero_grad().forward().backward().optimizer_step()
            if batch is not None:
                trace.call(NAME, family=Families.SCHEDULER_STEP, owner="opt0", where=batch)
        if epoch is not None:
            trace.call(other, family=Families.SCHEDULER_STEP, owner="opt0", where=epoch)
    return trace.build()


BROKEN = loop(batch="train.py:30", epoch="train.py:33")


def test_fires_on_two_lines() -> None:
    finding = fires("TC213", BROKEN)
    assert (finding.first_step, finding.violations) == (3, 1)
    assert finding.subject.api == Families.SCHEDULER_STEP
    assert mentions(finding, "train.py:30 and train.py:33", "train.py:33")


def test_quiet_on_one_line() -> None:
    for lines in ({"batch": "train.py:30", "epoch": None}, {"batch": None, "epoch": "train.py:33"}):
        assert quiet("TC213", loop(**lines)) is Verdict.HELD


def test_quiet_on_schedulers_of_two_classes() -> None:
    other = "torch.optim.lr_scheduler.ReduceLROnPlateau.step"
    events = loop(batch="train.py:30", epoch="train.py:33", other=other)
    assert quiet("TC213", events) is Verdict.HELD


def test_quiet_on_two_that_both_step_for_every_batch() -> None:
    trace = net()
    for _ in range(6):
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
        for line in ("train.py:30", "train.py:31"):
            trace.call(NAME, family=Families.SCHEDULER_STEP, owner="opt0", where=line)
    assert quiet("TC213", trace.build()) is Verdict.HELD


def test_quiet_on_warm_up_by_batch_and_steps_by_epoch() -> None:
    trace = net()
    for epoch in range(4):
        for _ in range(3):
            trace.begin_step().zero_grad().forward().backward().optimizer_step()
            if epoch < 1:
                trace.call(NAME, family=Families.SCHEDULER_STEP, owner="opt0", where="train.py:30")
        if epoch >= 1:
            trace.call(NAME, family=Families.SCHEDULER_STEP, owner="opt0", where="train.py:33")
    assert quiet("TC213", trace.build()) is Verdict.HELD
