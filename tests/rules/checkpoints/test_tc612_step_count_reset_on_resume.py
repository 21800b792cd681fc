"""TC612: a resumed run that counts its epochs from the beginning."""

from __future__ import annotations

import pytest

from tests.builders import MLP
from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import DISTRIBUTED
from tests.rules.resuming import PARTS, PATH, Resuming
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def resumed(
    before: dict[str, int],
    after: dict[str, int],
    *,
    optimizer: bool = True,
    steps: int = 2,
    fresh: bool = False,
) -> list[Event]:
    """A run that loads ``before``, trains, and saves ``after``. fresh: another optimizer steps."""
    builder = Resuming()
    builder.process().model("Net", MLP)
    builder.checkpoint("load", path=PATH, parts=PARTS, numbers=before)
    builder.checkpoint("load_state_dict", target="Net", matched=4, changed=4)
    builder.optimizer()
    if optimizer:
        builder.load_optimizer()
    if fresh:
        builder.optimizer()
    builder.steps(steps)
    builder.checkpoint("save", path=PATH, parts=PARTS, numbers=after)
    return builder.steps(1).build()


def told(epoch: int, *, number: int = 3, indices: tuple[int, ...] = (7, 2, 5, 1)) -> list[Event]:
    """A resume at epoch ``number`` whose sampler is told ``epoch``."""
    builder = Resuming()
    builder.process().model("Net", MLP)
    builder.checkpoint("load", path=PATH, parts=PARTS, numbers={"epoch": number})
    builder.checkpoint("load_state_dict", target="Net", matched=4, changed=4)
    builder.optimizer()
    builder.load_optimizer()
    builder.begin_step()
    builder.batch(sampler=DISTRIBUTED, sampler_epoch=epoch, indices=indices, drawn=4)
    builder.zero_grad().forward().backward().optimizer_step()
    return builder.steps(1).build()


BROKEN = resumed({"epoch": 3}, {"epoch": 0})


def test_fires_at_the_first_step_when_a_lower_epoch_is_saved() -> None:
    finding = fires("TC612", BROKEN)
    assert finding.first_step == 0
    assert mentions(finding, '"epoch": 3', '"epoch": 0')


@pytest.mark.parametrize(
    ("before", "after"),
    [({"global_step": 90}, {"global_step": 2}), ({"iter_num": 90}, {"iter_num": 1})],
)
def test_fires_when_steps_are_counted_anew(before: dict[str, int], after: dict[str, int]) -> None:
    assert fires("TC612", resumed(before, after)).first_step == 0


def test_fires_when_the_sampler_is_told_the_first_epoch_again(golden: Golden) -> None:
    finding = fires("TC612", told(0))
    golden(finding)
    assert mentions(finding, "loader0", 0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"epoch": 3}, {"epoch": 4}),
        ({"epoch": 3}, {"epoch": 3}),  # broken off within it, and begun again
        ({"epoch": 3, "step": 90}, {"epoch": 4, "step": 2}),  # within the epoch
        ({"step": 90}, {"step": 40}),
        ({"epochs": 90}, {"epochs": 30}),  # of all of the run
        ({"seed": 5}, {"seed": 3}),
        ({"epoch": 3}, {}),
    ],
)
def test_quiet_when_counts_go_on(before: dict[str, int], after: dict[str, int]) -> None:
    assert quiet("TC612", resumed(before, after)) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_quiet_on_fine_tuning_and_on_another_training() -> None:
    assert quiet("TC612", resumed({"epoch": 3}, {"epoch": 0}, optimizer=False)) is (
        Verdict.NOT_TRIGGERED
    )
    assert quiet("TC612", resumed({"epoch": 3}, {"epoch": 0}, fresh=True)) is (
        Verdict.NOT_TRIGGERED
    )


@pytest.mark.parametrize(
    "events", [told(3), told(2), told(4), told(0, number=1), told(0, indices=(0, 2, 4, 6))]
)
def test_quiet_when_the_sampler_goes_on_or_does_not_shuffle(events: list[Event]) -> None:
    assert quiet("TC612", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
