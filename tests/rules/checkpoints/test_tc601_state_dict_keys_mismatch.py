"""TC601: a load that fits nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict


def run(**fields: Any) -> list[Event]:
    given = {"op": "load_state_dict", "target": "Net", "entries": 4, "changed": 0, **fields}
    return net().add(CheckpointEvent, **given).steps(2).build()


BROKEN = run(matched=0, missing=["fc1.weight"], unexpected=["_orig_mod.fc1.weight"])


def test_fires_on_a_prefix() -> None:
    finding = fires("TC601", BROKEN)
    assert finding.subject.module == "Net"
    assert mentions(finding, "_orig_mod.fc1.weight")
    assert finding.first_step == 0


def test_quiet_when_a_part_fits() -> None:
    assert quiet("TC601", run(matched=2, missing=["fc2.weight"])) is Verdict.HELD


def test_quiet_when_nothing_was_given_or_it_is_not_known() -> None:
    assert quiet("TC601", run(matched=0, entries=0, missing=["fc1.weight"])) is Verdict.HELD
    assert quiet("TC601", run(missing=["fc1.weight"])) is Verdict.NOT_TRIGGERED


WANTED = ["encoder.a.weight", "encoder.a.bias", "encoder.b.weight", "encoder.b.bias"]
GIVEN = [name.replace("encoder", "backbone") for name in WANTED]


@pytest.mark.parametrize(
    ("missing", "unexpected"),
    [
        (WANTED, GIVEN),
        (WANTED, [*GIVEN, "head.weight"]),
        ([*WANTED, "head.weight"], GIVEN),
        (WANTED, [name.removeprefix("encoder.") for name in WANTED]),
        ([f"base.{name}" for name in WANTED], GIVEN),
    ],
)
def test_fires_where_most_has_another_name(
    missing: list[str], unexpected: list[str], golden: Golden
) -> None:
    entries = len(unexpected) + 2
    events = run(matched=2, missing=missing, unexpected=unexpected, entries=entries, changed=2)
    finding = fires("TC601", events)
    assert finding.subject.module == "Net"
    golden(finding)
    assert mentions(finding, unexpected[0], missing[0])


@pytest.mark.parametrize(
    ("matched", "missing", "unexpected"),
    [
        (20, WANTED, GIVEN),  # most came back
        (1, ["head.fc.weight", "head.fc.bias"], ["classifier.fc.weight", "classifier.fc.bias"]),
        (2, ["classifier.weight", "classifier.bias"], ["fc.weight", "fc.bias"]),
        (2, [], GIVEN),  # the encoder only
        (2, WANTED, []),  # adapters only
        (2, WANTED, ["decoder.c.weight", "decoder.c.bias"]),
        (3, [*WANTED, *(f"d{i}.e.weight" for i in range(5))], GIVEN),
    ],
)
def test_quiet_on_parts_that_are_new_or_not_wanted(
    matched: int, missing: list[str], unexpected: list[str]
) -> None:
    entries = matched + len(unexpected)
    events = run(matched=matched, missing=missing, unexpected=unexpected, entries=entries)
    assert quiet("TC601", events) is Verdict.HELD
