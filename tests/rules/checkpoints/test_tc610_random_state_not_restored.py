"""TC610: a resume that leaves the states of generators behind."""

from __future__ import annotations

from typing import Any

from tests.checking import fires, quiet
from tests.rules.resuming import PARTS, PATH, Resuming
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def resumed(*, kept: bool = True, given_back: bool = False, path: str = PATH) -> list[Event]:
    parts: dict[str, Any] = {**PARTS, **({"rng": {"kind": "rng"}} if kept else {})}
    builder = Resuming().begin(parts=parts)
    builder.optimizer()
    builder.load_optimizer()
    if given_back:
        builder.call(Families.SET_RNG_STATE)
    builder.step()
    builder.checkpoint("save", path=path, parts=parts)
    return builder.steps(2).build()


BROKEN = resumed()


def test_fires_when_states_are_not_given_back() -> None:
    finding = fires("TC610", BROKEN)
    assert (finding.first_step, finding.severity, finding.violations) == (0, "info", 1)


def test_quiet_when_they_are() -> None:
    assert quiet("TC610", resumed(given_back=True)) is Verdict.HELD


def test_quiet_when_none_were_kept_or_it_is_no_resume() -> None:
    assert quiet("TC610", resumed(kept=False)) is Verdict.NOT_TRIGGERED
    assert quiet("TC610", resumed(path="tuned/last.pt")) is Verdict.HELD
