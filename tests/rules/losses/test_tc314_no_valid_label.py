"""TC314: a batch without a valid label."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.loss_runs import loss_run, tensor
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json

NONE = tensor((64,), "int64", min=-100, max=-100)


def run(target: dict[str, Any], **args: Any) -> list[Event]:
    return loss_run("cross_entropy", input=tensor((64, 10)), target=target, **args)


BROKEN = run(NONE, ignore_index=-100)


def test_fires_when_all_are_left_out() -> None:
    finding = fires("TC314", BROKEN)
    assert finding.first_step == 0
    assert mentions(finding, -100)


def test_fires_on_another_index() -> None:
    assert fires("TC314", run(tensor((64,), "int64", min=0, max=0), ignore_index=0))


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (tensor((64,), "int64", min=-100, max=9), {}),
        (tensor((64,), "int64", min=3, max=3), {}),
        (tensor((64,), "int64"), {}),
        (tensor((64, 10), min=-100, max=-100), {}),
        (NONE, {"reduction": "sum"}),
        (NONE, {"ignore_index": -1}),
    ],
)
def test_quiet_while_a_label_counts(target: dict[str, Any], args: dict[str, Any]) -> None:
    assert quiet("TC314", run(target, **args)) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def of_a_sum(loss: float | None, target: dict[str, Any] = NONE) -> list[Event]:
    """Sums over labels, divided by how many count, in three steps; None for a finite loss."""
    events = []
    for event in run(target, reduction="sum"):
        is_backward = isinstance(event, CallEvent) and event.api == Families.BACKWARD
        value = TensorSummary("float32", (), value="nan" if loss is None else loss)
        args = {"tensors": [tensor_json(value)]}
        events.append(event.replace(args=args) if is_backward else event)
    return events


def test_fires_on_a_sum_that_is_divided_by_no_label() -> None:
    finding = fires("TC314", of_a_sum(None))
    assert finding.first_step == 0
    assert mentions(finding, -100)


@pytest.mark.parametrize(
    "events", [of_a_sum(0.0), of_a_sum(None, tensor((64,), "int64", min=-100, max=9))]
)
def test_quiet_on_a_sum_that_is_finite_or_of_labels(events: list[Event]) -> None:
    assert quiet("TC314", events) is Verdict.HELD
