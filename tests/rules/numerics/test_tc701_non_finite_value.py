"""TC701: NaN that reaches the parameters, named by where it began."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.numbers import BROKEN as NAN
from tests.rules.numbers import norm, numbered
from tests.rules.window import scale, scaler_step
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def from_step(step: int, **kinds: bool) -> list[Event]:
    """A run in which these are not finite from a step on."""

    def of(kind: str):  # type: ignore[no-untyped-def]
        return lambda name, at: NAN if kinds.get(kind) and at >= step else norm(1.0)

    return numbered(
        net().steps(5).build(),
        gradient=of("gradient"),
        parameter=of("parameter"),
        batch=lambda at: NAN if kinds.get("batch") and at == step else {"nonfinite": 0},
        loss=lambda at: "nan" if kinds.get("loss") and at >= step else 1.0,
        result=lambda module, at: NAN if kinds.get("module") == module and at >= step else None,
    )


BROKEN = from_step(2, batch=True, loss=True, gradient=True, parameter=True)


def test_one_finding_names_the_batch(golden: Golden) -> None:
    finding = fires("TC701", BROKEN)
    assert (finding.first_step, finding.violations) == (2, 1)
    assert finding.subject.variable == "0"
    golden(finding)
    assert mentions(finding, 0, "loader0", "train.py:88")


def test_the_first_module_is_named() -> None:
    kinds = {"module": "Net.fc2", "loss": True, "gradient": True, "parameter": True}
    assert fires("TC701", from_step(1, **kinds)).subject.module == "Net.fc2"  # type: ignore[arg-type]


def test_the_loss_is_named(golden: Golden) -> None:
    finding = fires("TC701", from_step(1, loss=True, gradient=True, parameter=True))
    golden(finding)


def test_the_update_is_named_when_all_before_it_was_finite() -> None:
    finding = fires("TC701", from_step(3, parameter=True))
    assert finding.first_step == 3
    assert finding.subject.variable == "Net.fc1.weight"


def test_a_parameter_that_began_so_is_named() -> None:
    events = numbered(
        net().steps(2).build(),
        first=lambda name, step: NAN if name == "Net.fc2.bias" else norm(1.0),
        gradient=lambda name, step: NAN,
        parameter=lambda name, step: NAN,
    )
    finding = fires("TC701", events)
    assert (finding.first_step, finding.subject.variable) == (0, "Net.fc2.bias")


def test_fires_at_the_second_step_where_parameters_are_not_looked_at() -> None:
    events = numbered(
        net().steps(6).build(),
        gradient=lambda name, step: NAN if step > 2 else norm(1.0),
        parameter=lambda name, step: None,
    )
    assert fires("TC701", events).first_step == 3


def test_quiet_when_gradients_are_repaired_before_the_step() -> None:
    events = from_step(3, batch=True, loss=True, gradient=True)
    assert quiet("TC701", events) is Verdict.HELD


def test_quiet_when_the_scaler_skips() -> None:
    trace = net()
    for number in range(6):
        scale(trace.begin_step().zero_grad().forward()).backward()
        scaler_step(trace, skips=number in (0, 1, 4))
    events = numbered(
        trace.build(),
        gradient=lambda name, step: NAN if step in (0, 1, 4) else norm(1.0),
        loss=lambda step: "inf" if step == 0 else 1.0,
    )
    assert quiet("TC701", events) is Verdict.HELD


def test_quiet_when_the_program_skips_such_a_step() -> None:
    trace = net().steps(2)
    trace.begin_step().batch().zero_grad().forward().backward()
    trace.batch().zero_grad().forward().backward().optimizer_step()
    seen = []

    def gradient(name: str, step: int):  # type: ignore[no-untyped-def]
        seen.append(name)
        return NAN if step == 2 and seen.count(name) == 3 else norm(1.0)

    assert quiet("TC701", numbered(trace.build(), gradient=gradient)) is Verdict.HELD


def test_fires_on_a_loss_that_stays_infinite(golden: Golden) -> None:
    finding = fires("TC701", from_step(1, loss=True))
    assert (finding.first_step, finding.subject.api) == (1, Families.BACKWARD)
    golden(finding)
