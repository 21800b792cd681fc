"""TC333: softmax over one element."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.loss_runs import tensor
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Verdict

SOFTMAX = "torch.nn.functional.softmax"
SCORE = "Net.fc2.weight"
ALL = ("Net.fc1.weight", "Net.fc1.bias", "Net.fc2.weight", "Net.fc2.bias")


def run(
    shape: tuple[int, ...] = (32, 10, 1),
    dim: int = 2,
    zero: tuple[str, ...] = (SCORE,),
    steps: int = 6,
    rows: int = 1,
    **more: Any,
) -> list[Event]:
    trace = net()
    for _ in range(steps):
        trace.begin_step().batch().zero_grad().forward()
        given = {**tensor(shape), "requires_grad": True, **more}
        trace.call(SOFTMAX, args={"input": given, "dim": dim}, result=given)
        trace.backward().optimizer_step()

    def changed(event: Event) -> Event:
        if not isinstance(event, StateEvent) or event.summary is None or event.name not in zero:
            return event
        is_zero = event.role == "gradient"
        shape = (rows, 8) if event.name == SCORE else event.summary.shape
        return event.replace(summary=event.summary.replace(zero=is_zero, shape=shape))

    return [changed(event) for event in trace.build()]


BROKEN = run()


def test_fires_once_with_the_scores_that_cannot_learn(golden: Golden) -> None:
    finding = fires("TC333", BROKEN)
    assert (finding.first_step, finding.violations, finding.severity) == (0, 1, "warning")
    assert finding.subject.api == SOFTMAX
    golden(finding)
    assert mentions(finding, 2, "[32, 10, 1]", 1, SCORE)


def test_fires_on_one_output_when_nothing_learns() -> None:
    assert fires("TC333", run((32, 1), 1, ALL)).first_step == 0
    assert fires("TC333", run((32, 1), -1, ALL)).first_step == 0
    assert quiet("TC333", run((32, 1), 1)) is Verdict.HELD  # the rest of the model learns


@pytest.mark.parametrize(
    "events",
    [
        run(dim=1),
        run(steps=4),
        run(rows=4),  # queries and keys of one token
        run((32, 1, 1)),  # texts of one token
        run(zero=()),
        run(requires_grad=False),
        net().steps(6).build(),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC333", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


class Pool(nn.Module):
    """Attention over positions."""

    def __init__(self, dim: int, positions: int = 6) -> None:
        super().__init__()
        self.dim, self.positions = dim, positions
        self.body, self.score, self.head = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.body(rows[:, : self.positions]))
        weights = torch.softmax(self.score(hidden), dim=self.dim)
        return self.head((weights * hidden).sum(1))


@pytest.mark.parametrize(
    ("model", "is_broken"),
    [(Pool(2), True), (Pool(1), False), (Pool(2, positions=1), False), (Pool(1, 1), False)],
)
def test_recorded_runs(tmp_path: Path, model: Pool, is_broken: bool) -> None:
    with recording(tmp_path / "run") as recorded:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(16, 6, 4)), torch.randint(3, (16,))).backward()
            optimizer.step()
    if is_broken:
        assert mentions(fires("TC333", recorded.events), "Pool.score.weight")
    else:
        assert quiet("TC333", recorded.events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


@pytest.mark.parametrize("has_softmax", [True, False])
def test_a_classifier_of_one_output(tmp_path: Path, has_softmax: bool) -> None:
    last = nn.Softmax(dim=1) if has_softmax else nn.Sigmoid()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), last)
    with recording(tmp_path / "run") as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            labels = torch.randint(2, (16, 1)).float()
            F.binary_cross_entropy(model(torch.randn(16, 4)), labels).backward()
            optimizer.step()
    if has_softmax:
        assert fires("TC333", recorded.events).first_step == 0
    else:
        assert quiet("TC333", recorded.events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
