"""TC707: results that leave the range of their history."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.numbers import Activations
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def looks(*largest: float, **options: object) -> list[Event]:
    trace = Activations("torch.nn.functional.relu")
    for value in largest:
        stats = {"min": 0.0, "max": value, "nonfinite": 0, "zeros": 0.5, "dead": 0.0}
        trace.step(stats, **options)  # type: ignore[arg-type]
    return trace.build()


BROKEN = looks(1, 2, 1e5, 1e8)


def test_fires_when_it_is_confirmed(golden: Golden) -> None:
    finding = fires("TC707", BROKEN)
    assert finding.first_step == 2
    golden(finding)
    assert mentions(finding, "1e+08", 1.5)


def test_quiet_on_one_outlier() -> None:
    assert quiet("TC707", looks(1, 2, 1e6, 2, 1)) is Verdict.HELD


def test_quiet_on_results_that_were_always_large() -> None:
    assert quiet("TC707", looks(1e6, 2e6, 1e6, 3e7)) is Verdict.HELD


def test_quiet_on_slow_growth() -> None:
    assert quiet("TC707", looks(1, 5, 25, 125, 600, 3000, 9000)) is Verdict.HELD
