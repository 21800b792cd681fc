"""TC110: names that shared one parameter and no longer do."""

from __future__ import annotations

from tests.builders import LINEAR, TraceBuilder
from tests.checking import fires, quiet
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict

LM = {"embed.weight": "torch.nn.modules.sparse.Embedding", "head.weight": LINEAR}
NAMES = ("LM.embed.weight", "LM.head.weight")


def tied() -> TraceBuilder:
    builder = TraceBuilder().process()
    builder.model("LM", LM)
    model = builder.models["LM"]
    model.parameters[NAMES[1]].identity = model.parameters[NAMES[0]].identity
    same = builder.events[-2].identity  # type: ignore[union-attr]
    builder.edit(builder.events[-1], identity=same)
    return builder.optimizer()


def load(builder: TraceBuilder, untied: tuple[str, ...]) -> TraceBuilder:
    return builder.add(CheckpointEvent, op="load_state_dict", target="LM", matched=2, untied=untied)


def replaced(*names: str) -> list[Event]:
    return tied().steps(2).replace(*names).steps(2).build()


BROKEN = load(TraceBuilder().process(), NAMES).model("LM", LM).optimizer().steps(2).build()


def test_fires_at_the_step_that_follows() -> None:
    finding = fires("TC110", replaced(NAMES[1]))
    assert (finding.first_step, finding.variables) == (1, NAMES)


def test_fires_after_a_load_that_assigns() -> None:
    finding = fires("TC110", BROKEN)
    assert (finding.first_step, finding.variables) == (0, NAMES)


def test_quiet_when_they_are_tied_again() -> None:
    builder = load(tied(), NAMES).steps(2)
    assert quiet("TC110", builder.build()) is Verdict.HELD


def test_quiet_on_weights_that_were_never_tied() -> None:
    events = TraceBuilder().process().model("LM", LM).optimizer().steps(2).replace(NAMES[0])
    assert quiet("TC110", events.steps(2).build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_tied_weights_that_stay() -> None:
    assert quiet("TC110", tied().steps(3).build()) is Verdict.HELD
