"""TC922: a layer at several places."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.models import model
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

LINEAR = "torch.nn.modules.linear.Linear.forward"
LSTM = "torch.nn.modules.rnn.LSTM.forward"


def called(
    times: int,
    *,
    forwards: int = 1,
    again: bool = False,
    api: str = LINEAR,
    training: bool = True,
    rows: tuple[int, ...] = (64,),
) -> list[Event]:
    """Steps with so many calls in a forward; again: computed once more in the backward."""
    trace = net()
    layer = {"family": Families.MODULE, "module": "Net.shared", "training": training}
    for _ in range(4):
        trace.begin_step().zero_grad()
        for _ in range(forwards):
            for number in range(times):
                given = {"dtype": "float32", "shape": [rows[number % len(rows)], 8]}
                trace.call(api, args={"0": given}, **layer)
            trace.forward()
        if again:
            trace.call(api, **layer)
        trace.backward().optimizer_step()
    return trace.build()


BROKEN = called(2)


def test_fires_on_two_calls_in_one_forward() -> None:
    finding = fires("TC922", BROKEN)
    assert (finding.subject.module, finding.first_step) == ("Net.shared", 2)
    assert (finding.severity, finding.violations) == ("info", 1)


@pytest.mark.parametrize(
    "events",
    [
        called(1),
        called(1, forwards=2),
        called(1, again=True),
        called(2, training=False),
        called(2, api=LSTM),
        called(2, rows=(64, 16)),
    ],
    ids=["once", "several forwards", "checkpointing", "evaluation", "recurrent", "something else"],
)
def test_quiet_on_others(events: list[Event]) -> None:
    assert quiet("TC922", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def models_called(*calls: tuple[str, int], repeating: tuple[str, ...] = ()) -> list[Event]:
    """Steps in which layers are called one after the other, each within a separate span."""
    facts: dict[str, dict[str, Any]] = {path: {"repeats": True} for path in repeating}
    trace = model(facts)
    for _ in range(4):
        trace.begin_step().zero_grad()
        for name, parent in calls:
            trace.call(LINEAR, family=Families.MODULE, module=name, training=True, parent=parent)
        trace.forward().backward().optimizer_step()
    return trace.build()


TOWERS = [("Net.enc.0", 1), ("Net.enc.2", 1), ("Net.enc.0", 2), ("Net.enc.2", 2)]
BLOCKS = [("Net.blocks.0.a", n) for n in range(3)] + [("Net.blocks.0.b", n) for n in range(3)]
IN_TIME = [("Net.gate", 1), ("Net.state", 1)] * 5
INSIDE = [("Net.flow.net.0", n) for n in range(6)] + [("Net.flow.net.2", n) for n in range(6)]


def test_fires_once_on_a_list_that_holds_one_block_several_times(golden: Golden) -> None:
    for others in ([("Net.head", 9)], [("Net.blocks.3.a", 7), ("Net.head", 9)], []):
        events = models_called(*BLOCKS, *others, repeating=("blocks",))
        finding = fires("TC922", events)
        assert (finding.subject.module, finding.violations) == ("Net.blocks.0", 1)
        golden(finding)
        assert mentions(finding, 3)


def test_fires_on_a_layer_that_two_blocks_share() -> None:
    calls = [("Net.a.shared", 1), ("Net.a.own", 1), ("Net.a.shared", 2), ("Net.b.own", 2)]
    assert fires("TC922", models_called(*calls)).subject.module == "Net.a.shared"


def test_fires_on_a_list_of_one_layer() -> None:
    calls = [*[("Net.layers.0", 1)] * 6, ("Net.head", 1)]
    finding = fires("TC922", models_called(*calls, repeating=("layers",)))
    assert finding.subject.module == "Net.layers.0"


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(TOWERS, id="towers"),
        pytest.param([*TOWERS, ("Net.head", 3)], id="towers and a head"),
        pytest.param(IN_TIME, id="over time"),
        pytest.param([*IN_TIME, ("Net.head", 1)], id="over time and a head"),
        pytest.param([("Net.cells.0", 1)] * 5, id="a list of cells over time"),
        pytest.param([*BLOCKS, ("Net.head", 9)], id="a list of one group, called again"),
        pytest.param([*INSIDE, ("Net.flow", 9), ("Net.head", 9)], id="in a loop of a module"),
    ],
)
def test_quiet_on_networks_called_again_and_on_loops_over_time(calls: list[Any]) -> None:
    assert quiet("TC922", models_called(*calls)) is Verdict.HELD
