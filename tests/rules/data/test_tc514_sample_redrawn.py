"""TC514: samples that are drawn again before others were drawn."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.rules.batches import run_on
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

RANDOM = "torch.utils.data.sampler.RandomSampler"
SUBSET = "torch.utils.data.sampler.SubsetRandomSampler"
WEIGHTED = "torch.utils.data.sampler.WeightedRandomSampler"
SIZE = 8


def epoch(indices: list[int], **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "index": place // SIZE,
            "indices": indices[place : place + SIZE],
            "drawn": len(indices[place : place + SIZE]),
            **{"sampler": RANDOM, **more},
        }
        for place in range(0, len(indices), SIZE)
    ]


def order(count: int = 64, seed: int = 1) -> list[int]:
    return random.Random(seed).sample(range(count), count)


def drawn(count: int = 64) -> list[int]:
    return random.Random(1).choices(range(count), k=count)


BROKEN = run_on(epoch(drawn()))


@pytest.mark.parametrize("sampler", [RANDOM, SUBSET, "builtins.list"])
def test_fires_when_samples_come_again_and_others_never(sampler: str) -> None:
    finding = fires("TC514", run_on(epoch(drawn(), sampler=sampler)))
    assert (finding.first_step, finding.variables) == (1, ("loader0",))


@pytest.mark.parametrize(
    "batches",
    [
        epoch(order()),
        epoch(order() + order(seed=2)),  # an epoch longer than the data
        epoch(order() + order()[:SIZE]),  # filled up
        epoch(order()) + epoch(order(seed=2), epoch=1),
        epoch(drawn(), sampler=WEIGHTED),
        epoch(drawn(), sampler="__main__.Balanced"),
    ],
)
def test_quiet_on_others(batches: list[dict[str, Any]]) -> None:
    assert quiet("TC514", run_on(batches)) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_quiet_on_evaluation() -> None:
    trace = net()
    for batch in epoch(drawn(), loader="loader1"):
        trace.begin_step().batch().zero_grad().forward().backward().optimizer_step()
        trace.train(False).batch(**batch).forward(grad=False).train(True)
    events: list[Event] = trace.build()
    assert quiet("TC514", events) is Verdict.HELD
