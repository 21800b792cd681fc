"""TC807: the state of an optimizer in half precision."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.resuming import PARTS, PATH, Resuming
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Verdict


def saved(*dtypes: str, weights: str = "float32") -> list[Event]:
    builder = Resuming().process().model("Net")
    assert isinstance(builder, Resuming)
    for event in list(builder.events):
        if isinstance(event, StateEvent) and event.summary is not None:
            summary = event.summary.replace(dtype=weights)
            builder.edit(event, summary=summary)
    builder.optimizer().steps(2)
    parts = {"optimizer": {**PARTS["optimizer"], "dtypes": list(dtypes)}}
    for _ in range(2):
        builder.checkpoint("save", path=PATH, parts=parts)
    return builder.steps(1).build()


BROKEN = saved("float16")


def test_fires_on_moments_in_half() -> None:
    finding = fires("TC807", BROKEN)
    assert (finding.first_step, finding.severity, finding.violations) == (1, "info", 1)
    assert mentions(finding, "float16")


def test_quiet_on_moments_like_the_weights() -> None:
    assert quiet("TC807", saved("float32")) is Verdict.HELD
    assert quiet("TC807", saved("bfloat16", weights="bfloat16")) is Verdict.HELD


def test_quiet_without_moments() -> None:
    assert quiet("TC807", saved()) is Verdict.NOT_TRIGGERED
