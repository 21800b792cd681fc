"""TC034: references of preference losses that are computed with dropout, on real programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.checking import fires, net, quiet
from tests.collect.recording import recording, skip_without_sizes
from tests.golden import mentions
from tests.rules.window import dropout, forward
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

Loss = Callable[[nn.Module, Tensor], Tensor]


class Policy(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.tokens, self.head, self.drop = nn.Embedding(12, 8), nn.Linear(8, 12), nn.Dropout(drop)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.drop(self.tokens(ids)))
        return found


def logs(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids)[:, :-1]
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)


def preference(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        reference = logs(model, ids)
    chosen, rejected = (logs(model, ids) - reference).chunk(2)
    return -F.logsigmoid(0.1 * (chosen - rejected)).mean()


def ratio(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        old = logs(model, ids)
    ratio = torch.exp(logs(model, ids) - old)
    return -(torch.min(ratio, ratio.clamp(0.8, 1.2)) * torch.randn(8)).mean()


def in_eval_mode(model: nn.Module, ids: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        reference = logs(model, ids)
    model.train()
    return -F.logsigmoid(logs(model, ids) - reference).mean()


def pseudo_labels(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        labels = model(ids).argmax(-1)
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


def consistency(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        target = model(ids).softmax(-1)
    return F.kl_div(model(ids).log_softmax(-1), target, reduction="batchmean")


def rollouts(model: nn.Module, ids: Tensor) -> Tensor:
    """Sampled token by token; the log-probability is compared with itself."""
    with torch.no_grad():
        for length in range(1, 5):
            model(ids[:, :length])
    found = logs(model, ids)
    return -(torch.exp(found - found.detach()) * torch.randn(8)).mean()


def trained(folder: Path, loss: Loss, drop: float = 0.3) -> list[Event]:
    skip_without_sizes()
    with recording(folder) as run:
        model = Policy(drop)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(6):
            optimizer.zero_grad()
            loss(model, torch.randint(0, 12, (8, 5))).backward()
            optimizer.step()
    return run.events


def run(*compared: bool, mode: bool = True, passes: int = 1) -> list[Event]:
    """Steps with passes without gradients, and a loss that subtracts constants, or does not."""
    trace = net()
    for is_compared in compared:
        trace.begin_step()
        for _ in range(passes):
            forward(trace, dropout("Net.drop", on=mode), mode=mode, grad=False)
        forward(trace.zero_grad(), dropout("Net.drop", on=True)).backward()
        trace.mark("label positions", positions=[], compared=is_compared)
        trace.optimizer_step()
    return trace.begin_step().build()


BROKEN = run(True, True)


def test_fires_in_the_second_step() -> None:
    finding = fires("TC034", run(True, True, True))
    assert (finding.first_step, finding.violations) == (1, 1)
    assert finding.subject.module == "Net"
    assert mentions(finding.observed, "Net.drop")


def test_quiet_in_evaluation_mode_and_on_other_losses() -> None:
    assert quiet("TC034", run(True, True, True, mode=False)) is Verdict.HELD
    assert quiet("TC034", run(False, True, False)) is Verdict.HELD
    assert quiet("TC034", run(False, False, False)) is Verdict.NOT_TRIGGERED


def test_quiet_on_more_passes_than_those_with_gradients() -> None:
    assert quiet("TC034", run(True, True, True, passes=3)) is Verdict.HELD


# -- real programs


@pytest.mark.parametrize("loss", [preference, ratio])
def test_fires_on_real_programs(tmp_path: Path, loss: Loss) -> None:
    finding = fires("TC034", trained(tmp_path, loss))
    assert (finding.first_step, finding.subject.module) == (2, "Policy")


@pytest.mark.parametrize("loss", [in_eval_mode, pseudo_labels, consistency, rollouts])
def test_quiet_on_other_passes_without_gradients(tmp_path: Path, loss: Loss) -> None:
    assert quiet("TC034", trained(tmp_path, loss)) is not Verdict.VIOLATED


@pytest.mark.parametrize("loss", [preference, ratio])
def test_quiet_without_dropout(tmp_path: Path, loss: Loss) -> None:
    assert quiet("TC034", trained(tmp_path, loss, drop=0.0)) is Verdict.HELD
