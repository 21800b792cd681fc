"""TC805: parameters that are trained in half precision."""

from __future__ import annotations

from collections.abc import Collection

from tests.builders import MLP
from tests.checking import fires, net, quiet
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

ALL = tuple(sorted(f"Net.{name}" for name in MLP))


def run(half: Collection[str], *, frozen: bool = False) -> list[Event]:
    trace = net()
    if frozen:
        trace.freeze(*half)
    return [
        e.replace(summary=e.summary.replace(dtype="bfloat16"))
        if e.kind == "state" and e.role == "parameter" and e.name in half and e.summary is not None
        else e
        for e in trace.steps(3).build()
    ]


BROKEN = run(ALL)


def test_fires_as_advice_at_the_first_step() -> None:
    finding = fires("TC805", BROKEN)
    assert (finding.severity, finding.first_step) == ("info", 0)
    assert finding.variables == ALL


def test_quiet_on_float32_and_on_frozen_parameters() -> None:
    assert quiet("TC805", run(())) is Verdict.HELD
    assert quiet("TC805", run(ALL[:2], frozen=True)) is Verdict.HELD
