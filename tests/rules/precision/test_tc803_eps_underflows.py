"""TC803: an eps that float16 cannot hold."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import MLP, SGD
from tests.checking import fires, net, quiet
from tests.golden import mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(dtype: str, **hyper: Any) -> list[Event]:
    return [
        e.replace(summary=e.summary.replace(dtype=dtype))
        if e.kind == "state" and e.role == "parameter" and e.summary is not None
        else e
        for e in net(**hyper).steps(2).build()
    ]


BROKEN = run("float16", eps=1e-8)


def test_fires_at_the_first_step() -> None:
    finding = fires("TC803", BROKEN)
    assert finding.first_step == 0
    assert finding.variables == tuple(sorted(f"Net.{name}" for name in MLP))
    assert mentions(finding, "eps=1e-08")


@pytest.mark.parametrize(
    ("dtype", "hyper"),
    [
        ("float32", {"eps": 1e-8}),
        ("bfloat16", {"eps": 1e-8}),
        ("float16", {"eps": 1e-4}),
        ("float16", {"eps": 1e-8, "fused": True}),
        ("float16", {"cls": SGD}),
    ],
)
def test_quiet_when_eps_counts(dtype: str, hyper: dict[str, Any]) -> None:
    assert quiet("TC803", run(dtype, **hyper)) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
