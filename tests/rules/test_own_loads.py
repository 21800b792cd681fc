"""A load that changes nothing suppresses no rule: Accelerate gives each optimizer its own state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.checking import BY_CODE, report_of
from tests.rules.broken import BROKEN
from tests.together import together
from traincheck.schema.events import CheckpointEvent, Event, OptimizerEvent, StateEvent


def own_loads(events: Iterable[Event]) -> Iterator[Event]:
    """``events``, and behind each optimizer that is made loads of what is there already."""
    models: dict[str, None] = {}
    for event in events:
        yield event
        if isinstance(event, StateEvent) and event.role == "parameter":
            models[event.name.partition(".")[0]] = None
        if not isinstance(event, OptimizerEvent) or event.change != "created":
            continue
        given = {"op": "load_state_dict", "changed": 0, "where": "accelerate/optimizer.py:75"}
        yield CheckpointEvent(*event.header, target=event.cls, owner=event.id, entries=0, **given)
        for model in models:
            yield CheckpointEvent(*event.header, target=model, entries=4, matched=4, **given)
        for name in ("LambdaLR", "OneCycleLR", "MultiStepLR"):
            target = f"torch.optim.lr_scheduler.{name}"
            yield CheckpointEvent(*event.header, target=target, **given)


@together("code", BROKEN)
def test_a_load_of_what_is_there_hides_no_fault(code: str) -> None:
    found = report_of(own_loads(BROKEN[code]), [BY_CODE[code]]).findings
    assert [finding.code for finding in found] == [code]
