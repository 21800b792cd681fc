"""TC325: the blank of ctc_loss among its labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.rules.loss_runs import loss_run, tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

PROBABLE = tensor((25, 16, 6), min=-3, max=-1)


def run(shape: tuple[int, ...], low: int, high: int, lengths: Any, **args: Any) -> list[Event]:
    targets = tensor(shape, "int64", min=low, max=high)
    given = {"log_probs": PROBABLE, "targets": targets, "target_lengths": lengths, "blank": 0}
    return loss_run("ctc_loss", **{**given, **args})


def lengths(low: int, high: int) -> dict[str, Any]:
    return tensor((16,), "int64", min=low, max=high)


BROKEN = run((16, 5), 0, 5, lengths(5, 5))


def test_fires_when_padding_counts() -> None:
    finding = fires("TC325", BROKEN)
    assert finding.first_step == 0
    assert finding.subject.api == "torch.nn.functional.ctc_loss"


@pytest.mark.parametrize(
    ("shape", "low", "high", "given", "args"),
    [
        ((16, 5), 0, 5, [5] * 16, {}),
        ((48,), 0, 5, lengths(2, 5), {}),
        ((16, 5), 1, 5, lengths(5, 5), {"blank": 5}),
    ],
)
def test_fires_on_other_forms(shape: Any, low: int, high: int, given: Any, args: Any) -> None:
    assert fires("TC325", run(shape, low, high, given, **args)).severity == "error"


@pytest.mark.parametrize(
    ("shape", "low", "high", "given", "args"),
    [
        ((16, 5), 0, 5, lengths(2, 5), {}),  # padding behind the lengths
        ((16, 5), 0, 5, [2] + [5] * 15, {}),
        ((16, 5), 1, 5, lengths(5, 5), {}),
        ((16, 5), 0, 4, lengths(5, 5), {"blank": 5}),
        ((16, 5), -1, 5, lengths(5, 5), {}),
        ((48,), 1, 5, lengths(2, 5), {}),
        ((5,), 0, 5, None, {"log_probs": tensor((25, 6), min=-3, max=-1)}),
    ],
)
def test_quiet(shape: Any, low: int, high: int, given: Any, args: Any) -> None:
    verdict = quiet("TC325", run(shape, low, high, given, **args))
    assert verdict in (Verdict.HELD, Verdict.NOT_TRIGGERED)


@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_recorded_run(tmp_path: Path, is_wrong: bool) -> None:
    net, loss = nn.Linear(8, 6), nn.CTCLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path / "run") as run:
        for _ in range(3):
            labels, size = torch.randint(1, 6, (4, 5)), torch.tensor([2, 3, 4, 4])
            labels[torch.arange(5) >= size[:, None]] = 0
            if is_wrong:
                size = torch.full((4,), 5)
            optimizer.zero_grad()
            scores = net(torch.randn(16, 4, 8)).log_softmax(-1)
            loss(scores, labels, torch.full((4,), 16), size).backward()
            optimizer.step()
    if is_wrong:
        assert fires("TC325", run.events).first_step == 0
    else:
        assert quiet("TC325", run.events) is Verdict.NOT_TRIGGERED
