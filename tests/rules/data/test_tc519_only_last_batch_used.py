"""TC519: training that stands behind the loop over the loader."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import leaf
from tests.rules.loss_runs import F
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def step(trace: TraceBuilder, epoch: int, fetched: int, used: Sequence[int]) -> None:
    """Fetch so many batches of an epoch, and train on some of them."""
    trace.begin_step()
    for index in range(fetched):
        leaves = {"batch[0]": leaf(f"x{epoch}-{index}"), "batch[1]": labels(epoch, index)}
        trace.batch(epoch=epoch, index=index, leaves=leaves)
    trace.zero_grad()
    for index in used:
        trace.call(
            "__main__.Net.forward",
            family=Families.MODULE,
            module="Net",
            root=True,
            args={"0": leaf(f"x{epoch}-{index}")},
        )
        args = {"target": labels(epoch, index), "reduction": "mean"}
        trace.call(F + "cross_entropy", args=args)
    trace.backward().optimizer_step()


def labels(epoch: int, index: int) -> dict[str, object]:
    return leaf(f"y{epoch}-{index}", (4,), dtype="int64")


def run(steps: int = 4, fetched: int = 5, used: Sequence[int] = (4,)) -> list[Event]:
    trace = net()
    for epoch in range(steps):
        step(trace, epoch, fetched, used)
    return trace.build()


BROKEN = run()


def test_fires_at_the_first_step(golden: Golden) -> None:
    finding = fires("TC519", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 3)
    assert finding.variables == ("loader0",)
    golden(finding)
    assert mentions(finding, 5)


def test_fires_at_the_end_of_two_steps() -> None:
    assert fires("TC519", run(2)).first_step == 0
    assert quiet("TC519", run(1)) is Verdict.HELD


def test_fires_where_only_labels_are_known_again() -> None:
    events = [e.replace(args={}) if getattr(e, "root", False) else e for e in BROKEN]  # type: ignore[attr-defined]
    fires("TC519", events)


@pytest.mark.parametrize(
    ("fetched", "used"),
    [
        (5, (0, 1, 2, 3, 4)),  # accumulated
        (5, (2,)),  # the one that was chosen
        (5, (9,)),  # all of them, joined
    ],
)
def test_quiet_where_others_are_used(fetched: int, used: Sequence[int]) -> None:
    assert quiet("TC519", run(fetched=fetched, used=used)) is Verdict.HELD


def test_quiet_where_batches_are_few_or_nothing_is_known() -> None:
    assert quiet("TC519", run(fetched=2, used=(1,))) is Verdict.NOT_TRIGGERED
    assert quiet("TC519", run(used=())) is Verdict.NOT_TRIGGERED


def test_quiet_where_the_data_is_read_once_before_training() -> None:
    trace = net()
    step(trace, 0, 5, (4,))
    for epoch in range(1, 8):
        step(trace, epoch, 1, (0,))
    assert quiet("TC519", trace.build()) is Verdict.HELD
