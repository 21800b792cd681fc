"""TC114: parameters that something else than their optimizer writes to."""

from __future__ import annotations

from tests.builders import MLP
from tests.checking import fires, quiet
from tests.rules.resuming import Resuming
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def looks(*written: tuple[str, ...], owner: str = "opt0", loads: bool = False) -> list[Event]:
    """A step for each look, with the names that it found."""
    trace = Resuming()
    trace.process().model("Net", MLP).optimizer()
    for names in written:
        if loads:
            trace.checkpoint("load_state_dict", target="Net", matched=4, changed=4)
        data = {"owner": owner, "names": list(names), "parameters": len(names)}
        trace.mark("parameters between steps", **data)
        trace.step()
    return trace.build()


WEIGHT = ("Net.fc1.weight",)
BROKEN = looks(WEIGHT, WEIGHT, WEIGHT)


def test_fires_at_the_first_of_three_looks() -> None:
    finding = fires("TC114", BROKEN)
    assert finding.first_step == 0
    assert finding.variables == WEIGHT


def test_quiet_when_they_are_as_the_optimizer_left_them() -> None:
    assert quiet("TC114", looks((), (), ())) is Verdict.HELD


def test_quiet_when_it_was_not_always_so() -> None:
    assert quiet("TC114", looks(WEIGHT, WEIGHT, (), WEIGHT, WEIGHT)) is Verdict.HELD


def test_quiet_after_loads() -> None:
    assert quiet("TC114", looks(WEIGHT, WEIGHT, WEIGHT, loads=True)) is Verdict.NOT_TRIGGERED


def test_quiet_on_an_image_that_is_kept_within_its_range() -> None:
    assert quiet("TC114", looks(*(3 * [("opt0[0].0",)]))) is Verdict.HELD
