"""TC703: weights that hardly any gradient reaches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.builders import LINEAR, TraceBuilder
from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden
from tests.rules.numbers import norm, numbered
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

DEEP = {f"fc{i}.{kind}": LINEAR for i in range(5) for kind in ("weight", "bias")}


def run(of: Callable[[str, int], float], steps: int = 12) -> list[Event]:
    trace = TraceBuilder().process().model("Net", DEEP).optimizer().steps(steps)
    return numbered(trace.build(), gradient=lambda name, at: norm(of(name, at)))


def vanished(name: str, step: int) -> float:
    return 1e-11 if name == "Net.fc0.weight" else 1.0


BROKEN = run(vanished)


def test_fires_after_ten_steps_in_a_row() -> None:
    finding = fires("TC703", BROKEN)
    assert (finding.first_step, finding.variables) == (0, ("Net.fc0.weight",))
    assert quiet("TC703", run(vanished, steps=9)) is Verdict.HELD


def test_quiet_on_a_bias_in_front_of_a_normalization() -> None:
    assert quiet("TC703", run(lambda n, at: 1e-12 if n.endswith("bias") else 1.0)) is Verdict.HELD


def test_quiet_on_gradients_of_zero() -> None:
    assert quiet("TC703", run(lambda n, at: 0.0 if "fc0" in n else 1.0)) is Verdict.HELD


def test_quiet_behind_what_began_with_zeros() -> None:
    """The gradient is in proportion to a weight that was zero."""
    behind = run(lambda n, at: vanished(n, at) if at or "fc0" not in n else 0.0)
    assert quiet("TC703", behind) is Verdict.HELD


@pytest.mark.parametrize(("factor", "is_told"), [("A", False), ("B", True)])
def test_quiet_on_the_first_factors_of_lora(factor: str, is_told: bool) -> None:
    names = [f"{i}.lora_{one}.default.weight" for i in range(4) for one in "AB"]
    trace = TraceBuilder().process().model("Net", dict.fromkeys(names, LINEAR)).optimizer()
    small = f"Net.1.lora_{factor}.default.weight"
    events = numbered(
        trace.steps(12).build(), gradient=lambda n, at: norm(1e-11 if n == small else 1.0)
    )
    if is_told:
        assert fires("TC703", events).variables == (small,)
    else:
        assert quiet("TC703", events) is Verdict.HELD


class Adapted(nn.Module):
    """A layer with a small product of two added; the second begins with zeros, or not."""

    def __init__(self, is_zero: bool) -> None:
        super().__init__()
        self.base, self.down = nn.Linear(8, 8), nn.Linear(8, 2, bias=False)
        self.up = nn.Linear(2, 8, bias=False)
        torch.nn.init.constant_(self.up.weight, 0.0 if is_zero else 1e-7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 1e-4 * self.up(self.down(x))


@pytest.mark.parametrize("is_zero", [True, False])
def test_recorded_runs(tmp_path: Path, is_zero: bool, golden: Golden) -> None:
    with recording(tmp_path / "run") as recorded:
        model = nn.Sequential(Adapted(is_zero), Adapted(is_zero))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).pow(2).mean().backward()
            optimizer.step()
    if is_zero:
        assert quiet("TC703", recorded.events) is Verdict.HELD
    else:
        golden(fires("TC703", recorded.events), numbers=False)


def test_quiet_when_they_come_by_themselves() -> None:
    growing = run(lambda n, at: 1e-12 * 20**at if n == "Net.fc0.weight" else 1.0)
    assert quiet("TC703", growing) is Verdict.HELD


def test_quiet_on_a_model_of_few_weights() -> None:
    trace = TraceBuilder().process().model().optimizer().steps(12)
    events = numbered(
        trace.build(), gradient=lambda n, at: norm(vanished(n.replace("fc1", "fc0"), at))
    )
    assert quiet("TC703", events) is Verdict.NOT_TRIGGERED


def test_quiet_where_all_are_small() -> None:
    assert quiet("TC703", run(lambda n, at: 1e-12)) is Verdict.HELD


def test_depth_shows_sooner() -> None:
    layers = {f"fc{i}.weight": LINEAR for i in range(8)}
    trace = TraceBuilder().process().model("Net", layers).optimizer().steps(12)
    events = trace.build()
    by_depth = numbered(events, gradient=lambda n, at: norm(10.0 ** (int(n[6]) - 8)))
    assert fires("TC703", by_depth).variables == (
        "Net.fc0.weight",
        "Net.fc1.weight",
        "Net.fc2.weight",
    )
    scale_of_residuals = numbered(
        events, gradient=lambda n, at: norm(1.0 if n[6] == "7" else 1e-7 + 1e-8 * (at % 2))
    )
    assert quiet("TC703", scale_of_residuals) is Verdict.HELD
