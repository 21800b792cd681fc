"""TC304: a part that stays in evaluation mode."""

from __future__ import annotations

from collections.abc import Sequence

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.rules.window import dropout, forward
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

NAMES = [f"Net.{name}" for name in MLP]


def loop(
    modes: Sequence[bool], *, trained: Sequence[str] = NAMES, root: bool = True
) -> list[Event]:
    trace = TraceBuilder().process().model("Net", MLP).optimizer(names=trained)
    for mode in modes:
        inner = [dropout("Net.fc1.drop", on=mode), dropout("Net.fc2.drop", on=True)]
        forward(trace.begin_step().zero_grad(), *inner, mode=root)
        trace.backward(trained).optimizer_step()
    return trace.build()


BROKEN: list[Event] = loop([True, True, False, False, False])


def test_fires_where_a_part_stays_behind() -> None:
    finding = fires("TC304", BROKEN)
    assert (finding.first_step, finding.violations) == (2, 1)
    assert finding.subject.module == "Net.fc1.drop"


def test_quiet_while_all_are_in_training_mode() -> None:
    assert quiet("TC304", loop([True] * 4)) is Verdict.HELD
    assert quiet("TC304", loop([True, False, True, True])) is Verdict.HELD


def test_quiet_from_the_start_or_frozen() -> None:
    assert quiet("TC304", loop([False] * 4)) is Verdict.HELD
    assert quiet("TC304", loop([True, False, False], trained=NAMES[2:])) is Verdict.HELD
