"""TC115: requires_grad as an attribute of a module."""

from __future__ import annotations

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(flag: bool | None, names: list[str] | None = None) -> list[Event]:
    facts = {"class": "Linear", **({} if flag is None else {"requires_grad": flag})}
    trace = TraceBuilder().process().model("Net", MLP)
    trace.mark("model", name="Net", modules={"Net": {"class": "Net"}, "Net.fc1": facts})
    return trace.optimizer(names=names).steps(3).build()


BROKEN = run(flag=False)


def test_fires_at_the_first_step_that_trains_it(golden: Golden) -> None:
    finding = fires("TC115", BROKEN)
    assert (finding.first_step, finding.violations, finding.subject.module) == (0, 1, "Net.fc1")
    assert mentions(finding, "Net.fc1.requires_grad_(False)")
    golden(finding)
    assert mentions(finding, 2)


def test_quiet_where_nothing_below_is_trained() -> None:
    head = ["Net.fc2.weight", "Net.fc2.bias"]
    assert quiet("TC115", run(flag=False, names=head)) is Verdict.HELD


def test_quiet_without_the_attribute() -> None:
    for flag in (None, True):
        assert quiet("TC115", run(flag=flag)) is Verdict.NOT_TRIGGERED
