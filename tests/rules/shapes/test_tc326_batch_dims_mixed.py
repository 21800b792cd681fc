"""TC326: sequence layers of one model that take different dims for the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.models import ModelStructure

GRU, ATTENTION = (
    "torch.nn.modules.rnn.GRU.forward",
    "torch.nn.modules.activation.MultiheadAttention.forward",
)
Shape = tuple[int, int]


def given(trace: TraceBuilder, api: str, path: str, shape: Shape, *, stage: str = "train") -> None:
    tensor = {"dtype": "float32", "shape": [*shape, 16], "device": "cpu"}
    grad = stage == "train"
    trace.call(api, module=path, args={"0": tensor}, grad_enabled=grad)


def run(first: Shape, other: Shape, *, steps: int = 4, flags: Shape = (1, 0)) -> list[Event]:
    """Steps of a model of two layers. flags: batch_first of each."""
    trace = net()
    modules = {
        "Seq.enc": {"batch_first": bool(flags[1])},
        "Seq.dec": {"batch_first": bool(flags[0])},
    }
    trace.mark(ModelStructure.text, name="Seq", modules=modules)
    for _ in range(steps):
        trace.begin_step().zero_grad().forward()
        given(trace, ATTENTION, "Seq.dec", first)
        given(trace, GRU, "Seq.enc", other)
        trace.backward().optimizer_step()
    return trace.end_step().build()


BROKEN = run((32, 6), (32, 24))


def test_fires_once_after_three_steps(golden: Golden) -> None:
    finding = fires("TC326", BROKEN)
    assert (finding.first_step, finding.violations) == (2, 1)
    assert finding.subject.module == "Seq.enc"
    golden(finding)
    assert mentions(finding, 24, 32)


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        (run((32, 6), (24, 32)), Verdict.HELD),  # transposed
        (run((32, 6), (32, 32)), Verdict.HELD),
        (run((32, 6), (32, 1)), Verdict.HELD),
        (run((32, 6), (32, 24), steps=2), Verdict.HELD),
        (run((32, 6), (32, 24), flags=(1, 1)), Verdict.NOT_TRIGGERED),
        (run((32, 6), (32, 24), flags=(0, 0)), Verdict.NOT_TRIGGERED),
    ],
)
def test_quiet(events: list[Event], verdict: Verdict) -> None:
    assert quiet("TC326", events) is verdict


class Forecast(nn.Module):
    def __init__(self, *, batch_first: bool, transposes: bool) -> None:
        super().__init__()
        self.enc = nn.GRU(3, 16, batch_first=batch_first)
        self.dec = nn.MultiheadAttention(16, 2, batch_first=True)
        self.out, self.transposes = nn.Linear(16, 3), transposes
        self.query = nn.Parameter(torch.randn(1, 6, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.transposes:
            memory = self.enc(x.transpose(0, 1))[0].transpose(0, 1)
        else:
            memory = self.enc(x)[0]
        query = self.query.expand(len(x), -1, -1)
        return self.out(self.dec(query, memory, memory)[0])


@pytest.mark.parametrize(
    ("batch_first", "transposes", "verdict"),
    [
        (False, False, Verdict.VIOLATED),
        (True, False, Verdict.NOT_TRIGGERED),
        (False, True, Verdict.HELD),
    ],
)
def test_recorded_runs(
    tmp_path: Path, batch_first: bool, transposes: bool, verdict: Verdict
) -> None:
    model = Forecast(batch_first=batch_first, transposes=transposes)
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            x = torch.randn(8, 24, 3)
            optimizer.zero_grad()
            nn.functional.smooth_l1_loss(model(x), x[:, -6:]).backward()
            optimizer.step()
    if verdict is Verdict.VIOLATED:
        assert fires("TC326", run.events).subject.module == "Forecast.enc"
    else:
        assert quiet("TC326", run.events) is verdict
