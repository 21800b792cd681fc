"""TC601: a load that fits nothing."""

from __future__ import annotations

from typing import Any

from tests.checking import fires, net, quiet
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict


def run(**fields: Any) -> list[Event]:
    given = {"op": "load_state_dict", "target": "Net", "entries": 4, "changed": 0, **fields}
    return net()._add(CheckpointEvent, **given).steps(2).build()


BROKEN = run(matched=0, missing=["fc1.weight"], unexpected=["_orig_mod.fc1.weight"])


def test_fires_on_a_prefix() -> None:
    finding = fires("TC601", BROKEN)
    assert finding.subject.module == "Net"
    assert "_orig_mod.fc1.weight" in finding.message
    assert finding.first_step == 0


def test_quiet_when_a_part_fits() -> None:
    assert quiet("TC601", run(matched=2, missing=["fc2.weight"])) is Verdict.HELD


def test_quiet_when_nothing_was_given_or_it_is_not_known() -> None:
    assert quiet("TC601", run(matched=0, entries=0, missing=["fc1.weight"])) is Verdict.HELD
    assert quiet("TC601", run(missing=["fc1.weight"])) is Verdict.NOT_TRIGGERED
