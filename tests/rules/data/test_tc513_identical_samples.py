"""TC513: rows of a batch that are all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import leaf, run_on
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

SIZE = 16


def pictures(alike: float = 1, place: int = 0, **more: Any) -> dict[str, Any]:
    """Images of a batch; place: of the batch."""
    stats = {"min": 0.0, "max": 1.0, "mean": 0.5 + place / 100, "alike": alike}
    return leaf(shape=(SIZE, 1, 8, 8), stats=stats, **more)


def labels(low: int = 0, high: int = 9) -> dict[str, Any]:
    return leaf(shape=(SIZE,), dtype="int64", stats={"min": low, "max": high})


def batches(leaves: Sequence[dict[str, Any]], count: int = 3, **more: Any) -> list[Event]:
    """Steps on the same tensors, but for the mean of the first, which differs."""
    first, *others = leaves
    made = []
    for place in range(count):
        stats = {**first["stats"], "mean": first["stats"]["mean"] + place}
        tensors = [{**first, "stats": stats}, *others]
        indices = list(range(place * SIZE, place * SIZE + SIZE))
        fields = {"indices": indices, "drawn": SIZE, "index": place, **more}
        made.append({"leaves": {f"batch[{i}]": t for i, t in enumerate(tensors)}, **fields})
    return run_on(made)


BROKEN = batches([pictures(), labels()])


@pytest.mark.parametrize(
    "events", [BROKEN, batches([pictures()]), batches([pictures(), pictures()])]
)
def test_fires_at_the_first_of_three_batches(events: list[Event], golden: Golden) -> None:
    finding = fires("TC513", events)
    assert (finding.first_step, finding.variables) == (0, ("loader0",))
    golden(finding)
    assert mentions(finding, 16, "[0]")


@pytest.mark.parametrize(
    "events",
    [
        batches([pictures(1 / SIZE), labels()]),
        batches([pictures(), labels()], count=2),
        batches([pictures(), labels(3, 3)]),  # one sample, on purpose
        batches([pictures(), pictures(1 / SIZE), labels()]),  # what is constant is no input
        batches([pictures(), labels()], indices=[4] * SIZE),  # repeated by the sampler
        batches([pictures(), labels()], indices=[], drawn=0),  # a stream
        batches([leaf(shape=(SIZE, 4), stats=pictures()["stats"]), labels()]),
        batches([leaf(shape=(SIZE, 32), dtype="int64", stats=pictures()["stats"])]),  # prompts
        batches([pictures() | {"stats": {"min": 0, "max": 1, "mean": 0}}, labels()]),
    ],
)
def test_quiet_on_others(events: list[Event]) -> None:
    assert quiet("TC513", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_quiet_on_one_constant_tensor() -> None:
    constant = pictures() | {"stats": {"min": 0.0, "max": 0.0, "mean": 0.0, "alike": 1}}
    assert quiet("TC513", batches([constant, labels()])) is Verdict.HELD
