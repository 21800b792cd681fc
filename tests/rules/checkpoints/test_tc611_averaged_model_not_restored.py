"""TC611: an average that the first update after a resume overwrites."""

from __future__ import annotations

from collections.abc import Sequence

from tests.checking import fires, quiet
from tests.golden import Golden
from tests.rules.resuming import Resuming
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Verdict

TRAINED = {"Net.fc1.weight": "xxh3-128:aa", "Net.fc1.bias": "xxh3-128:bb"}
AVERAGE = {"Average.model.fc1.weight": "xxh3-128:cc", "Average.model.fc1.bias": "xxh3-128:dd"}
SAME = dict(zip(AVERAGE, TRAINED.values()))


def resumed(
    equal: Sequence[bool | None] = (True, False, False),
    *,
    values: dict[str, str] = AVERAGE,
    changed: int = 2,
    model: bool = True,
    optimizer: bool = True,
) -> list[Event]:
    """equal: of the average, in each step; None where it does not change."""
    builder = Resuming().process().model("Net")
    assert isinstance(builder, Resuming)
    builder.optimizer()
    if model:
        builder.checkpoint("load_state_dict", target="Net", changed=2, values=TRAINED)
    builder.checkpoint("load_state_dict", target="Average", changed=changed, values=values)
    if optimizer:
        builder.load_optimizer()
    for is_equal in equal:
        builder.forward()
        builder.zero_grad().backward().optimizer_step()
        if is_equal is not None:
            facts = {"model": "Average", "of": "Net", "parameters": 2, "equal": is_equal}
            builder.mark("loaded model changed", **facts)
        builder.end_step()
    return builder.steps(2).build()


BROKEN = resumed()


def test_fires_at_the_update_that_copies(golden: Golden) -> None:
    finding = fires("TC611", BROKEN)
    assert (finding.first_step, finding.violations, finding.severity) == (0, 1, "warning")
    assert finding.subject.module == "Average"
    golden(finding)


def test_fires_when_the_step_of_the_load_was_over() -> None:
    assert fires("TC611", resumed((None, True, False, False))).first_step == 1


def test_quiet_when_it_goes_on_averaging() -> None:
    assert quiet("TC611", resumed((False, False, False))) is Verdict.HELD


def test_quiet_on_target_networks() -> None:
    assert quiet("TC611", resumed((True, True, True))) is Verdict.HELD
    assert quiet("TC611", resumed((True, None, True))) is Verdict.HELD
    assert quiet("TC611", resumed((True, False, True))) is Verdict.HELD
    assert quiet("TC611", resumed((True, None, None))) is Verdict.HELD


def test_quiet_when_averaging_begins_later() -> None:
    assert quiet("TC611", resumed((None, None, True, False, False))) is Verdict.NOT_TRIGGERED


def test_quiet_when_nothing_is_lost() -> None:
    assert quiet("TC611", resumed(values=SAME)) is Verdict.NOT_TRIGGERED
    assert quiet("TC611", resumed(changed=0)) is Verdict.NOT_TRIGGERED


def test_quiet_when_it_is_no_resume() -> None:
    assert quiet("TC611", resumed(optimizer=False)) is Verdict.NOT_TRIGGERED
    assert quiet("TC611", resumed(model=False)) is Verdict.NOT_TRIGGERED


def test_quiet_when_a_step_was_not_recorded() -> None:
    steps = [i for i, event in enumerate(BROKEN) if isinstance(event, StepEvent)]
    events = list(BROKEN)
    events[steps[0]] = events[steps[0]].replace(recorded=False)  # type: ignore[call-arg]
    assert quiet("TC611", events) is Verdict.HELD
