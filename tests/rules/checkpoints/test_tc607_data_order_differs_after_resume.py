"""TC607: an epoch that is resumed in another order."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.resuming import PARTS, PATH, Resuming
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

BATCHES, SIZE = 6, 4
ORDER = [list(range(SIZE * i, SIZE * i + SIZE)) for i in range(BATCHES)]
OTHER = ORDER[::-1]


def epoch(
    builder: Resuming,
    order: list[list[int]],
    loader: str,
    *,
    skip: int = 0,
    stop: int = BATCHES,
    sampler: str = "torch.utils.data.sampler.RandomSampler",
) -> None:
    for index, indices in enumerate(order[:stop]):
        if index >= skip:
            builder.begin_step()
        builder.batch(loader, index=index, indices=indices, drawn=SIZE, sampler=sampler)
        if index >= skip:
            builder.zero_grad("opt0").forward().backward().optimizer_step("opt0")


def run(order: list[list[int]], *, skip: int = 3, sampler: str | None = None) -> list[Event]:
    builder = Resuming().process().model("Net")
    assert isinstance(builder, Resuming)
    builder.optimizer()
    epoch(builder, ORDER, "loader0", stop=3)
    builder.checkpoint("save", path=PATH, parts=PARTS)
    builder.checkpoint("load", path=PATH, parts=PARTS)
    epoch(builder, order, "loader1", skip=skip, **({"sampler": sampler} if sampler else {}))
    epoch(builder, OTHER, "loader1", skip=0)
    return builder.build()


BROKEN = run(OTHER)


def test_fires_at_the_first_batch_that_comes_again(golden: Golden) -> None:
    finding = fires("TC607", BROKEN)
    assert (finding.first_step, finding.violations) == (3, 1)
    golden(finding)
    assert mentions(finding, 3)


def test_fires_when_the_sampler_leaves_batches_out() -> None:
    skipping = "accelerate.data_loader.SkipBatchSampler"
    assert fires("TC607", run(OTHER[3:], skip=0, sampler=skipping)).first_step == 3
    assert quiet("TC607", run(ORDER[3:], skip=0, sampler=skipping)) is Verdict.HELD


def test_quiet_when_the_order_is_restored() -> None:
    assert quiet("TC607", run(ORDER)) is Verdict.HELD


def test_quiet_when_the_epoch_begins_again() -> None:
    assert quiet("TC607", run(OTHER, skip=0)) is Verdict.NOT_TRIGGERED


def test_quiet_when_as_many_are_skipped_for_another_reason() -> None:
    assert quiet("TC607", run(OTHER, skip=2)) is Verdict.NOT_TRIGGERED
