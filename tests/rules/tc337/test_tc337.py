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
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.rules.losses import F, tensor
from traincheck.schema.apis import Families
from traincheck.schema.findings import Verdict

LENGTH, VOCABULARY = 16, 27
TOKENS = tensor((8, LENGTH), "int64")
SCORES = (8, 4, LENGTH, LENGTH)


def softmax(dim: int | None, shape: tuple[int, ...] = SCORES, **stats: float) -> dict[str, Any]:
    return {"args": {"dim": dim}, "result": tensor(shape, **stats)}


def steps(
    *scores: dict[str, Any],
    shifted: int | None = 1,
    given: dict[str, Any] | None = None,
    count: int = 3,
    grad: bool = True,
) -> TraceBuilder:
    trace = net()
    stats = {"min": 0, "max": 26} | ({} if shifted is None else {"shifted": shifted})
    loss = {"input": tensor((128, 27)), "target": tensor((128,), "int64", **stats)}
    root = {"family": Families.MODULE, "module": "LM", "root": True, "grad_enabled": grad}
    for _ in range(count):
        trace.begin_step().zero_grad().forward()
        for fields in scores:
            trace.call(f"{F}softmax", grad_enabled=grad, **fields)
        trace.call("__main__.LM.forward", args=given or {"0": TOKENS}, **root)
        trace.call(f"{F}cross_entropy", args=loss, grad_enabled=grad)
        trace.backward().optimizer_step()
    return trace


def test_fires_once_at_the_first_step() -> None:
    finding = fires("TC337", steps(softmax(-2), softmax(-2)).build())
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.observed.endswith("[8, 4, 16, 16]: the queries, 2 times in a step")


@pytest.mark.parametrize(
    ("dim", "shape", "over"),
    [
        (1, SCORES, "heads or samples"),
        (2, SCORES, "the queries"),
        (1, (8, LENGTH, LENGTH), "the queries"),
        (0, (8, LENGTH, LENGTH), "heads or samples"),
    ],
)
def test_fires_on_each_other_dim(dim: int, shape: tuple[int, ...], over: str) -> None:
    assert over in fires("TC337", steps(softmax(dim, shape)).build()).observed


def test_fires_without_text_where_a_mask_tells_the_dims_apart() -> None:
    given = {"0": tensor((8, LENGTH, 32))}
    trace = steps(softmax(-2, hidden=1.0), given=given, shifted=None)
    fires("TC337", trace.build())
    for other in (softmax(-2, hidden=0.0), softmax(1, hidden=1.0), softmax(-2)):
        assert quiet("TC337", steps(other, given=given, shifted=None).build()) is Verdict.HELD


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ([softmax(-1)], Verdict.HELD),
        ([softmax(3)], Verdict.HELD),
        ([softmax(-1), softmax(-2)], Verdict.HELD),  # matched both ways
        ([softmax(-2, (8, 4, 9, 9))], Verdict.HELD),  # of something else than the text
        ([softmax(1, (8, 4, LENGTH, 7))], Verdict.NOT_TRIGGERED),
        ([softmax(1, (8, LENGTH))], Verdict.NOT_TRIGGERED),
        ([softmax(1, (8, 4, 2, 2))], Verdict.NOT_TRIGGERED),
        ([softmax(None)], Verdict.NOT_TRIGGERED),  # torch warns
    ],
)
def test_quiet_on_the_last_dim_and_on_other_softmax(
    scores: list[dict[str, Any]], verdict: Verdict
) -> None:
    assert quiet("TC337", steps(*scores).build()) is verdict


def test_quiet_on_other_targets_in_evaluation_and_on_one_step() -> None:
    for shifted in (None, 0):
        assert quiet("TC337", steps(softmax(-2), shifted=shifted).build()) is Verdict.HELD
    assert quiet("TC337", steps(softmax(-2), grad=False).build()) is Verdict.NOT_TRIGGERED
    assert quiet("TC337", steps(softmax(-2), count=1).build()) is Verdict.HELD


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


@pytest.mark.parametrize(("dim", "is_found"), [(-1, False), (-2, True), (1, True)])
def test_a_recorded_model(tmp_path: Path, dim: int, is_found: bool) -> None:
    model = Reader(dim)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(tmp_path / "run") as run:
        for _ in range(3):
            text = torch.randint(0, VOCABULARY, (4, LENGTH + 1))
            given, labels = text[:, :-1], text[:, 1:]
            loss = functional.cross_entropy(model(given).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if is_found:
        assert fires("TC337", run.events).first_step == 0
        assert quiet("TC324", run.events) is not Verdict.VIOLATED
    else:
        assert quiet("TC337", run.events) is Verdict.HELD
