"""TC503: a shuffled order that is the same in every epoch."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import DISTRIBUTED, SEQUENTIAL, run_on, trained_on
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

RANDOM = "torch.utils.data.sampler.RandomSampler"


def epoch(number: int, order: list[int], size: int = 8, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "index": place // size,
            "epoch": number,
            "indices": order[place : place + size],
            "drawn": len(order[place : place + size]),
            **more,
        }
        for place in range(0, len(order), size)
    ]


def order(seed: int, count: int = 32) -> list[int]:
    return random.Random(seed).sample(range(count), count)


BROKEN = run_on(epoch(0, order(1)) + epoch(1, order(1)))


def test_fires_at_the_first_batch_of_the_second_epoch(golden: Golden) -> None:
    finding = fires("TC503", BROKEN)
    assert (finding.first_step, finding.variables) == (4, ("loader0",))
    golden(finding)


def test_says_that_set_epoch_is_missing() -> None:
    both = epoch(0, order(1), sampler=DISTRIBUTED) + epoch(1, order(1), sampler=DISTRIBUTED)
    finding = fires("TC503", run_on(both))
    assert mentions(finding, "set_epoch")


@pytest.mark.parametrize(
    "batches",
    [
        epoch(0, order(1)) + epoch(1, order(2)),
        epoch(0, list(range(32)), sampler=SEQUENTIAL) + epoch(1, list(range(32))),
        epoch(0, order(1, 4)) + epoch(1, order(1, 4)),  # so few that it may be chance
    ],
)
def test_quiet_when_orders_differ_or_must_not(batches: list[dict[str, Any]]) -> None:
    assert quiet("TC503", run_on(batches)) is Verdict.HELD


def test_quiet_on_one_epoch_and_on_streams() -> None:
    assert quiet("TC503", run_on(epoch(0, order(1)))) is Verdict.NOT_TRIGGERED
    stream = [{"index": i % 4, "epoch": i // 4} for i in range(8)]
    assert quiet("TC503", run_on(stream)) is Verdict.NOT_TRIGGERED


def test_quiet_on_evaluation() -> None:
    trace = net()
    for number in range(2):
        for batch in epoch(number, order(1), loader="loader1"):
            trace.begin_step().batch().zero_grad().forward().backward().optimizer_step()
            trace.train(False).batch(**batch).forward(grad=False).train(True)
    assert quiet("TC503", trace.build()) is Verdict.NOT_TRIGGERED


def looked_into(numbers: list[int]) -> list[Event]:
    """Each epoch of training with a look at the loader before, in the order of the last epoch."""
    trace = net()
    for number, (before, own) in enumerate(pairwise([numbers[0], *numbers])):
        trace.begin_step().batch(**epoch(2 * number, order(before))[0])
        for batch in epoch(2 * number + 1, order(own)):
            trace.batch(**batch).zero_grad().forward().backward().optimizer_step()
            trace.begin_step()
    return trace.build()


def test_quiet_on_a_look_into_the_loader_before_its_order_is_set() -> None:
    assert quiet("TC503", looked_into([1, 2, 3])) is Verdict.HELD


def test_fires_when_the_order_repeats_whatever_was_looked_at() -> None:
    assert fires("TC503", looked_into([1, 1, 1])).variables == ("loader0",)


def test_quiet_on_a_second_training() -> None:
    trace = trained_on(epoch(0, order(1)))
    trace.optimizer()
    assert quiet("TC503", trained_on(epoch(1, order(1)), trace).build()) is Verdict.NOT_TRIGGERED
