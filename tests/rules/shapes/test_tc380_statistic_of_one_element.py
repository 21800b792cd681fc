"""TC380: a deviation or a normalization over one element."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.operations import OperationUses

ONE = {"over": 1.0, "of": 16.0, "gradient": 1.0}


def run(*numbers: dict[str, float], function: str = "normalize") -> list[Event]:
    """Steps in which a line calls a function."""
    trace = net()
    use = {"look": "statistic", "function": function, "where": "/home/ana/train.py:12", "calls": 1}
    for one in numbers:
        trace.begin_step().batch().zero_grad().forward().backward().optimizer_step()
        trace.mark(OperationUses.text, uses=[{**use, "numbers": one}])
        trace.end_step()
    return trace.build()


BROKEN = run(ONE, ONE, ONE)


@pytest.mark.parametrize("function", ["normalize", "std", "layer_norm", "sub"])
def test_fires_once_and_names_the_line(golden: Golden, function: str) -> None:
    finding = fires("TC380", run(ONE, ONE, ONE, ONE, function=function))
    assert (finding.first_step, finding.violations, finding.severity) == (0, 1, "warning")
    golden(finding)
    assert mentions(finding, "train.py:12")


@pytest.mark.parametrize(
    "events",
    [
        run(ONE, ONE),
        run(ONE, ONE, ONE, {**ONE, "over": 8.0}),
        run(*3 * [{**ONE, "of": 1.0}]),
        run(*3 * [{**ONE, "gradient": 0.0}]),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC380", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


class Scorer(nn.Module):
    """A hidden layer, one score, and functions of both."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.score, self.last = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 3)
        self.single, self.wide, self.groups = nn.LayerNorm(1), nn.LayerNorm(8), nn.GroupNorm(8, 8)

    def forward(self, x: Tensor, inner: Callable[[Scorer, Tensor], Tensor]) -> Tensor:
        hidden = torch.tanh(self.hidden(x))
        return self.last(hidden + inner(self, hidden))  # type: ignore[no-any-return]


def record(folder: Path, inner: Callable[[Scorer, Tensor], Tensor], rows: int = 16) -> list[Event]:
    torch.manual_seed(0)
    model = Scorer()
    with recording(folder / "run") as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(6):
            rows_now = 1 if rows == 0 and step == 5 else rows or 16
            x, y = torch.randn(rows_now, 6), torch.randint(0, 3, (rows_now,))
            loss = F.cross_entropy(model(x, inner), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return recorded.events


@pytest.mark.parametrize(
    ("inner", "function"),
    [
        (lambda m, h: F.normalize(m.score(h), dim=1), "normalize"),
        (lambda m, h: F.normalize(h[:, None])[:, 0], "normalize"),  # dim 1 is the default
        (lambda m, h: m.single(m.score(h)), "layer_norm"),
        (lambda m, h: m.groups(h), "group_norm"),
        (lambda m, h: F.rms_norm(m.score(h), (1,)), "rms_norm"),
        (lambda m, h: m.score(h).std(-1, correction=0)[:, None], "std"),
        (lambda m, h: torch.var_mean(h[:, None], dim=1, correction=0)[0], "var_mean"),
        (lambda m, h: m.score(h) - m.score(h).mean(1, keepdim=True), ""),
        (lambda m, h: centered(m.score(h), 1), "x.mean()"),
        (lambda m, h: centered(h[:, None], 1)[:, 0], "x.mean()"),
    ],
)
def test_recorded_runs(
    tmp_path: Path, inner: Callable[[Scorer, Tensor], Tensor], function: str
) -> None:
    events = record(tmp_path, inner)
    if function:
        finding = fires("TC380", events)
        assert finding.first_step == 0
        assert mentions(finding, function, Path(__file__).name)
    else:  # the mean of another tensor, although of equal values
        assert quiet("TC380", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def centered(x: Tensor, dim: int) -> Tensor:
    return x - x.mean(dim, keepdim=True)


@pytest.mark.parametrize(
    "inner",
    [
        lambda m, h: F.normalize(h, dim=1) + m.wide(h),
        lambda m, h: centered(h, 1) + h.std(1, keepdim=True),
        lambda m, h: centered(h, 0),
        lambda m, h: m.score(h).mean(1, keepdim=True) + m.score(h).norm(dim=1, keepdim=True),
        lambda m, h: h / (m.score(h).norm(dim=1, keepdim=True) + 1),
        lambda m, h: F.normalize(m.score(h), p=1.0, dim=1),
        lambda m, h: h * F.normalize(m.score(h.detach()).detach(), dim=1),
        lambda m, h: centered(m.score(h.detach()).detach(), 1),
        lambda m, h: h + (h.round() - h).detach(),
        lambda m, h: h - m.score(h).mean(1, keepdim=True),
    ],
)
def test_quiet_on_recorded_runs(tmp_path: Path, inner: Callable[[Scorer, Tensor], Tensor]) -> None:
    assert quiet("TC380", record(tmp_path, inner)) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_a_last_batch_of_one_row(tmp_path: Path) -> None:
    """Over the rows of a batch: only the last one has a single row."""
    events = record(tmp_path, lambda m, h: centered(h, 0), rows=0)
    assert quiet("TC380", events) is Verdict.HELD


def test_batches_of_one_row(tmp_path: Path) -> None:
    assert fires("TC380", record(tmp_path, lambda m, h: centered(h, 0), rows=1)).first_step == 0


def test_a_spectral_norm_of_one_output(tmp_path: Path) -> None:
    """Normalizes a vector of one element, without gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    nn.utils.parametrizations.spectral_norm(model[2])
    nn.utils.parametrizations.weight_norm(model[0], dim=1)
    with recording(tmp_path) as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(16, 6)).square().mean().backward()
            optimizer.step()
    assert quiet("TC380", recorded.events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
