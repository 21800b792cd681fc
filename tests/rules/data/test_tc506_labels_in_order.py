"""TC506: classes that come one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import SEQUENTIAL, leaf, run_on
from traincheck.schema.findings import Verdict


def labelled(*ranges: tuple[int, int], **more: Any) -> list[dict[str, Any]]:
    """Batches of labels with these extremes."""
    return [
        {
            "index": index,
            "sampler": SEQUENTIAL,
            "leaves": {
                "batch[0]": leaf(),
                "batch[1]": leaf(shape=(8,), dtype="int64", stats={"min": low, "max": high}),
            },
            **more,
        }
        for index, (low, high) in enumerate(ranges)
    ]


BROKEN = run_on(labelled((0, 0), (0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 2)))


def test_fires_when_a_third_class_has_come_in_order() -> None:
    finding = fires("TC506", BROKEN)
    assert (finding.first_step, finding.variables) == (0, ("loader0",))
    assert mentions(finding, "shuffle=True")


def test_fires_when_classes_meet_in_each_batch(golden: Golden) -> None:
    finding = fires("TC506", run_on(labelled((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))))
    golden(finding)
    assert mentions(finding, 4)


@pytest.mark.parametrize(
    "batches",
    [
        labelled((0, 9), (0, 9), (1, 9), (0, 8)),
        labelled((0, 0), (1, 1), (0, 0), (2, 2)),
        labelled((0, 7), (8, 15), (16, 23), (24, 31)),  # numbers of samples, say
        labelled((0, 0), (0, 0), (1, 1), (1, 1)),  # two classes only
        labelled((0, 1), (1, 2), (0, 2), (1, 2)),  # by chance, at first
    ],
)
def test_quiet_on_other_orders(batches: list[dict[str, Any]]) -> None:
    assert quiet("TC506", run_on(batches)) is Verdict.HELD


def test_quiet_when_shuffled_and_in_evaluation() -> None:
    shuffled = labelled((0, 0), (1, 1), (2, 2), sampler="RandomSampler")
    assert quiet("TC506", run_on(shuffled)) is Verdict.NOT_TRIGGERED
    trace = net()
    for batch in labelled((0, 0), (1, 1), (2, 2), loader="loader1"):
        trace.begin_step().batch().zero_grad().forward().backward().optimizer_step()
        trace.train(False).batch(**batch).forward(grad=False).train(True)
    assert quiet("TC506", trace.build()) is Verdict.HELD
