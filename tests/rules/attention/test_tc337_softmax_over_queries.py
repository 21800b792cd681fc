"""TC337: weights of attention that are normalized over the wrong dim."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.builders import TraceBuilder
from tests.checking import BY_CODE, fires, net, quiet
from tests.collect.recording import needs_sizes, recording
from tests.golden import Golden, mentions
from tests.rules.loss_runs import F, tensor
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.losses import AttentionSoftmax

LENGTH, VOCABULARY = 16, 27
SCORES = [8, 4, LENGTH, LENGTH]


def weights(normalized: int, kept: int = 2, summed: int = 3, shape: Any = None) -> dict[str, Any]:
    shape = SCORES if shape is None else shape
    return {"shape": shape, "normalized": normalized, "kept": kept, "summed": summed}


def steps(*told: Any, dim: int = -2, count: int = 3) -> TraceBuilder:
    trace = net()
    for _ in range(count):
        trace.begin_step().zero_grad().forward()
        trace.call(f"{F}softmax", args={"dim": dim}, result=tensor((8, 4, LENGTH, LENGTH)))
        trace.mark(AttentionSoftmax.text, weights=list(told))
        trace.backward().optimizer_step()
    return trace


BROKEN = steps(weights(2)).build()


def test_fires_once_at_the_first_step(golden: Golden) -> None:
    finding = fires("TC337", steps(weights(3), weights(2)).build())
    assert (finding.first_step, finding.violations) == (0, 1)
    golden(finding)
    assert mentions(finding, 2, "[8, 4, 16, 16]")
    assert finding.subject.api == f"{F}softmax"


def test_fires_over_heads_and_where_keys_come_first(golden: Golden) -> None:
    golden(fires("TC337", steps(weights(1)).build()))
    fires("TC337", steps(weights(3, kept=3, summed=2)).build())


@pytest.mark.parametrize(
    "told",
    [
        weights(3),
        weights(2, kept=3, summed=2),
        weights(2, shape=[8, 4, 16, 7]),  # clusters
        weights(1, kept=3, summed=1, shape=[8, 4, 16, 1]),  # capsules
        weights(2, shape=[8, 4, 2, 2]),
    ],
)
def test_quiet_on_other_weights(told: Any) -> None:
    assert quiet("TC337", steps(told).build()) is Verdict.HELD


@pytest.mark.parametrize(
    "told",
    [
        {"shape": "garbled"},
        {"shape": [8, "x"], "normalized": 0, "kept": 0, "summed": 1},
        weights(5),
        None,
    ],
)
def test_what_is_garbled_is_not_read(told: Any) -> None:
    assert quiet("TC337", steps(told).build()) is Verdict.NOT_TRIGGERED


def test_quiet_in_one_step_and_without_attention() -> None:
    assert quiet("TC337", steps(weights(2), count=1).build()) is Verdict.HELD
    assert quiet("TC337", net().begin_step().forward().build()) is Verdict.NOT_TRIGGERED


class Reader(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.layer = nn.Linear(32, 96)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        q, k, v = self.layer(self.embed(ids)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-2, -1) / math.sqrt(8)).masked_fill(later, -1e9)
        return self.head((scores.softmax(self.dim) @ v).transpose(1, 2).flatten(2))


@needs_sizes
@pytest.mark.parametrize(("dim", "is_found"), [(-1, False), (-2, True), (1, True)])
@pytest.mark.parametrize("needs", [None, BY_CODE["TC337"].needs])
def test_a_recorded_model(tmp_path: Path, dim: int, is_found: bool, needs: Needs | None) -> None:
    model = Reader(dim)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(tmp_path / "run", needs=needs) as run:
        for _ in range(3):
            text = torch.randint(0, VOCABULARY, (4, LENGTH + 1))
            given, labels = text[:, :-1], text[:, 1:]
            loss = functional.cross_entropy(model(given).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if is_found:
        finding = fires("TC337", run.events)
        assert (finding.first_step, finding.subject.api) == (0, "torch.Tensor.softmax")
        assert needs or quiet("TC324", run.events) is Verdict.NOT_TRIGGERED
    else:
        assert quiet("TC337", run.events) is Verdict.HELD
