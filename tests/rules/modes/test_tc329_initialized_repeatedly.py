"""TC329: parameters that are initialized over and over."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.loss_runs import tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

NORMAL = "torch.nn.init.normal_"
WEIGHT = "Net.fc1.weight"


def run(*calls: str) -> list[Event]:
    """These functions fill one weight before the first step."""
    trace: TraceBuilder = net()
    identity = trace.models["Net"].parameters[WEIGHT].identity
    for api in calls:
        trace.call(api, result={**tensor((32, 10)), "identity": identity})
    return trace.steps(2).build()


BROKEN = run(*[NORMAL] * 4)


def test_fires_as_advice_on_the_fourth_time(golden: Golden) -> None:
    finding = fires("TC329", BROKEN)
    assert (finding.severity, finding.first_step) == ("info", 0)
    assert finding.variables == (WEIGHT,)
    golden(finding)
    assert mentions(finding, 4)


def test_quiet_on_a_constructor_and_one_more() -> None:
    kaiming = "torch.nn.init.kaiming_uniform_"
    assert quiet("TC329", run(kaiming, NORMAL, NORMAL, NORMAL)) is Verdict.HELD
    assert quiet("TC329", run("torch.nn.init.zeros_", *["torch.nn.init.ones_"] * 6)) is (
        Verdict.NOT_TRIGGERED
    )


def test_quiet_on_what_is_filled_in_training() -> None:
    later = net().steps(1).begin_step()
    identity = later.models["Net"].parameters[WEIGHT].identity
    for _ in range(5):
        later.call(NORMAL, result={**tensor((32, 10)), "identity": identity})
    assert quiet("TC329", later.steps(2).build()) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
