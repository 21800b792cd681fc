"""Which loads may continue earlier training."""

from __future__ import annotations

import pytest

from traincheck.readings.resumptions import brings_back
from traincheck.schema.events import CheckpointEvent

ADAM = "torch.optim.adam.Adam"


def event(**fields: object) -> CheckpointEvent:
    return CheckpointEvent(0, 0, 0, "train", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "load_state_dict", "target": "Net", "entries": 4, "changed": 3},
        {"op": "load_state_dict", "target": ADAM, "entries": 4},  # of an old trace
        {"op": "load_state_dict", "target": ADAM, "entries": 0, "changed": 1},  # another rate
        {"op": "load", "target": "builtins.dict"},
        {"op": "load", "target": "__main__.Net"},
    ],
)
def test_a_load_of_other_values(fields: dict[str, object]) -> None:
    assert brings_back(event(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "load_state_dict", "target": "Net", "entries": 4, "changed": 0},
        {"op": "load_state_dict", "target": ADAM, "entries": 0},  # of an old trace
        {"op": "load_state_dict", "target": ADAM, "entries": 4, "changed": 0},
        {"op": "load", "target": "torch.Tensor"},  # a data set
        {"op": "save", "target": "builtins.dict"},
    ],
)
def test_a_load_of_nothing_new(fields: dict[str, object]) -> None:
    assert not brings_back(event(**fields))
