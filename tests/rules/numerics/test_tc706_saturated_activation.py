"""TC706: hidden activations at their limits."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.rules.numbers import Activations
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

TANH = "torch.nn.modules.activation.Tanh.forward"
BASE = {"min": -1.0, "max": 1.0, "nonfinite": 0, "zeros": 0.0}


def looks(*shares: float, api: str = TANH, **options: object) -> list[Event]:
    trace = Activations(api)
    for share in shares:
        trace.step({**BASE, "saturated": share}, **options)  # type: ignore[arg-type]
    return trace.build()


BROKEN = looks(1.0, 0.99, 0.98)


def test_fires_from_the_first_step_on() -> None:
    finding = fires("TC706", BROKEN)
    assert (finding.first_step, finding.subject.module) == (0, "Net.act")


def test_fires_on_functions() -> None:
    assert fires("TC706", looks(1.0, 1.0, 1.0, api="torch.sigmoid")).subject.module == "Net"


def test_quiet_on_what_becomes_saturated() -> None:
    # a gate that closes
    assert quiet("TC706", looks(0.1, 0.99, 0.99, 0.99, 0.99)) is Verdict.HELD


def test_quiet_on_an_output() -> None:
    events = looks(1.0, 1.0, 1.0, shape=(64, 10), output=(64, 10))
    assert quiet("TC706", events) is Verdict.HELD


def test_quiet_on_functions_that_clip() -> None:
    api = "torch.nn.modules.activation.Hardtanh.forward"
    assert quiet("TC706", looks(1.0, 1.0, 1.0, api=api)) is Verdict.HELD


def test_quiet_on_few_results() -> None:
    assert quiet("TC706", looks(1.0, 1.0, 1.0, shape=(8, 8))) is Verdict.HELD


def test_quiet_on_gates_of_few_units() -> None:
    assert quiet("TC706", looks(1.0, 1.0, 1.0, shape=(64, 4))) is Verdict.HELD
    assert fires("TC706", looks(1.0, 1.0, 1.0, shape=(64, 12))).first_step == 0
