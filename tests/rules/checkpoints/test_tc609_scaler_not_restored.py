"""TC609: a resume that leaves the scaler behind."""

from __future__ import annotations

from typing import Any

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.resuming import PARTS, PATH, Resuming
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def resumed(
    *, scale: float | None = 1024.0, load: bool = False, path: str = PATH, scaled: bool = True
) -> list[Event]:
    parts: dict[str, Any] = dict(PARTS)
    if scale is not None:
        parts["scaler"] = {"kind": "scaler", "scale": scale}
    builder = Resuming().begin(parts=parts)
    builder.optimizer()
    builder.load_optimizer()
    if load:
        builder.checkpoint("load_state_dict", target="torch.amp.grad_scaler.GradScaler")
    builder.step()
    if scaled:
        builder.call(Families.SCALER_STEP, owner="opt0")
    builder.checkpoint("save", path=path, parts=parts)
    return builder.steps(2).build()


BROKEN = resumed()


def test_fires_when_the_scale_begins_anew() -> None:
    finding = fires("TC609", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert mentions(finding, PATH)


def test_quiet_when_it_is_restored() -> None:
    assert quiet("TC609", resumed(load=True)) is Verdict.HELD


def test_quiet_when_there_is_nothing_to_restore() -> None:
    assert quiet("TC609", resumed(scale=65536.0)) is Verdict.HELD
    assert quiet("TC609", resumed(scale=None)) is Verdict.NOT_TRIGGERED
    assert quiet("TC609", resumed(scaled=False)) is Verdict.NOT_TRIGGERED


def test_quiet_on_fine_tuning() -> None:
    assert quiet("TC609", resumed(path="tuned/last.pt")) is Verdict.HELD
