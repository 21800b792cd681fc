"""TC719: each way back from a loss of zero ends in one operation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.builders import MLP
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.numbers import numbered
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.operations import OperationUses

ALL = [f"Net.{name}" for name in MLP]


def use(look: str, function: str, line: int, of: str = "") -> dict[str, object]:
    where = f"/home/ana/train.py:{line}"
    numbers = {"cut": 1.0}
    return {
        "look": look, "function": function, "where": where, "of": of, "calls": 1,
        "numbers": numbers,
    }  # fmt: skip


def run(
    steps: int, *, cut: bool = True, why: str = "factor", loss: float | None = 0.0,
    zero: list[str] = ALL,
) -> list[Event]:  # fmt: skip
    """Steps whose gradients are zero. cut: whether a gate was found on each way back."""
    trace = net()
    uses = [use("backward", "backward", 31), use("cut", "mul", 12, why)]
    for _ in range(steps):
        trace.begin_step().batch().zero_grad().forward().backward().optimizer_step()
        if cut:
            trace.mark(OperationUses.text, uses=uses)
        trace.end_step()
    return [
        e.replace(summary=e.summary.replace(zero=True))
        if isinstance(e, StateEvent) and e.role == "gradient" and e.summary and e.name in zero
        else e
        for e in numbered(trace.build(), loss=lambda at: loss)
    ]


BROKEN = run(6)


def test_fires_at_the_first_step_and_names_the_line(golden: Golden) -> None:
    finding = fires("TC719", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    golden(finding)
    assert mentions(finding, "mul", "train.py:12")


@pytest.mark.parametrize("why", ["dead", "limit", "mask", "choice", "softmax", "labels", "steps"])
def test_says_why_the_derivative_is_zero(why: str) -> None:
    assert mentions(fires("TC719", run(5, why=why)), "mul", "train.py:12")


@pytest.mark.parametrize(
    "events",
    [
        run(4),
        run(8, cut=False),  # a margin that is satisfied
        run(8, loss=0.7),  # another rule tells it
        run(8, zero=ALL[:3]),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC719", events) is Verdict.HELD


def advantages(logp: Tensor) -> Tensor:
    rewards = torch.ones(len(logp))
    return -(logp * (rewards - rewards.mean())).mean()


def masked(logp: Tensor) -> Tensor:
    return -logp.masked_fill(torch.ones(len(logp), dtype=torch.bool), 0.0).sum()


def weighted(logp: Tensor) -> Tensor:
    return 0.0 * (-logp.mean() + logp.square().mean())


def limited(logp: Tensor) -> Tensor:
    return (logp - 100).clamp(min=0.0).sum()


def one_term(logp: Tensor) -> Tensor:
    return -logp.mean() + advantages(logp)


def one_row(logp: Tensor) -> Tensor:
    mask = torch.zeros(len(logp))
    mask[0] = 1
    return -(logp * mask).sum()


def record(folder: Path, loss_of: Callable[[Tensor], Tensor]) -> list[Event]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    with recording(folder) as recorded:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(6):
            labels = torch.randint(0, 4, (16, 1))
            logp = model(torch.randn(16, 8)).log_softmax(1).gather(1, labels).squeeze(1)
            optimizer.zero_grad()
            loss_of(logp).backward()
            optimizer.step()
    return recorded.events


@pytest.mark.parametrize(
    ("loss_of", "function"),
    [(advantages, "mul"), (masked, "masked_fill"), (weighted, "mul"), (limited, "clamp")],
)
def test_recorded_runs_without_a_signal(
    tmp_path: Path, loss_of: Callable[[Tensor], Tensor], function: str
) -> None:
    finding = fires("TC719", record(tmp_path / "run", loss_of))
    assert finding.first_step == 0
    assert mentions(finding, function, Path(__file__).name)


@pytest.mark.parametrize("loss_of", [one_term, one_row])
def test_recorded_runs_with_a_signal(tmp_path: Path, loss_of: Callable[[Tensor], Tensor]) -> None:
    assert quiet("TC719", record(tmp_path / "run", loss_of)) is Verdict.HELD
