"""TC605: an optimizer that is saved in part."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.resuming import PARTS, PATH, Resuming
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def saved(params: int, *, optimizers: int = 1) -> list[Event]:
    builder = Resuming().process().model("Net")
    builder.optimizer()
    for _ in range(optimizers - 1):
        builder.optimizer(names=["Net.fc1.weight", "Net.fc1.bias"])
    builder.steps(2)
    parts = {**PARTS, "optimizer": {**PARTS["optimizer"], "params": params}}
    for _ in range(2):
        builder.checkpoint("save", path=PATH, parts=parts)  # type: ignore[attr-defined]
    return builder.steps(1).build()


BROKEN = saved(2)


def test_fires_when_parameters_are_left_out(golden: Golden) -> None:
    finding = fires("TC605", BROKEN)
    assert (finding.first_step, finding.violations) == (1, 1)
    golden(finding)
    assert mentions(finding, 2, 4)


def test_quiet_when_all_are_there() -> None:
    assert quiet("TC605", saved(4)) is Verdict.HELD
    assert quiet("TC605", saved(5)) is Verdict.HELD  # sharded: it holds a part of what is saved


def test_quiet_when_it_may_be_that_of_another_optimizer() -> None:
    assert quiet("TC605", saved(2, optimizers=2)) is Verdict.HELD
