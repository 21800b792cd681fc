"""TC604: a model that is given back its own tensors."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict


def run(*, steps: int = 3, shared: int = 4, changed: int = 0) -> list[Event]:
    builder = net().steps(steps)
    builder._add(
        CheckpointEvent,
        op="load_state_dict",
        target="Net",
        entries=4,
        matched=4,
        shared=shared,
        changed=changed,
        where="train.py:70",
    )
    return builder.steps(1).build()


BROKEN = run()


def test_fires_when_the_state_is_the_models_own() -> None:
    finding = fires("TC604", BROKEN)
    assert finding.first_step == 2
    assert finding.subject.module == "Net"
    assert "train.py:70" in finding.likely_cause


def test_quiet_on_a_copy() -> None:
    assert quiet("TC604", run(shared=0, changed=4)) is Verdict.HELD
    assert quiet("TC604", run(shared=0)) is Verdict.HELD


def test_quiet_before_the_first_step() -> None:
    assert quiet("TC604", run(steps=0)) is Verdict.NOT_TRIGGERED
