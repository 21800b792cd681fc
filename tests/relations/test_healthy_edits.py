"""What a careful user changes is no fault: learned from one run, checked on another."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.learning import claims, learn, report_of
from traincheck.schema.events import Event
from traincheck.schema.findings import Report

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
STEPS = 24


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.middle, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(self.middle(self.backbone(rows))))


def frozen(model: Net) -> Iterable[nn.Parameter]:
    """The backbone is kept as it is, in evaluation mode, and out of the optimizer."""
    model.backbone.requires_grad_(False).eval()
    return [p for p in model.parameters() if p.requires_grad]


def function(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels)  # looked up when it is called, as in any program


def tie(model: Net) -> None:
    model.last.weight = model.middle.weight


def run(
    folder: Path,
    *,
    seed: int = 0,
    trained: Callable[[Net], Iterable[nn.Parameter]] = nn.Module.parameters,
    loss: Loss = function,
    change: Callable[[Net], None] = lambda model: None,
) -> list[Event]:
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch, recording(folder) as recorded:
        patch.setattr(sys, "argv", ["finetune.py"])  # else it is that of whatever runs the tests
        model = Net().train()
        change(model)
        optimizer = torch.optim.Adam(trained(model), lr=0.01)
        for _ in range(STEPS):
            rows = torch.randn(16, 8)
            optimizer.zero_grad()
            loss(model(rows), rows[:, :3].argmax(1)).backward()
            optimizer.step()
    return recorded.events


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Event]], Report]:
    invariants = learn(run(tmp_path_factory.mktemp("reference"))).invariants
    assert invariants
    return lambda events: report_of(invariants, events)


def test_another_seed(tmp_path: Path, check: Callable[[list[Event]], Report]) -> None:
    assert not check(run(tmp_path, seed=1)).findings


def test_a_part_that_is_frozen_is_told_as_that(
    tmp_path: Path, check: Callable[[list[Event]], Report], golden: Golden
) -> None:
    (finding,) = check(run(tmp_path, trained=frozen)).findings
    assert finding.severity == "warning"
    golden(finding, numbers=False)
    assert mentions(finding, "requires_grad")
    assert all(name.startswith("Net.backbone.") for name in finding.variables)


def test_a_part_that_is_left_out_by_mistake_is_an_error(
    tmp_path: Path, check: Callable[[list[Event]], Report], golden: Golden
) -> None:
    finding, *_ = check(run(tmp_path, trained=lambda model: model.head.parameters())).findings
    assert finding.severity == "error"
    golden(finding, numbers=False)


@pytest.mark.parametrize(
    ("before", "after"),
    [(nn.CrossEntropyLoss(), function), (function, nn.CrossEntropyLoss())],
)
def test_a_loss_as_a_module_and_as_a_function(tmp_path: Path, before: Loss, after: Loss) -> None:
    invariants = learn(run(tmp_path / "reference", loss=before)).invariants
    assert not report_of(invariants, run(tmp_path / "run", loss=after)).findings


def test_weights_that_are_tied_are_told_as_that(
    tmp_path: Path, check: Callable[[list[Event]], Report], golden: Golden
) -> None:
    (finding,) = check(run(tmp_path, change=tie)).findings
    assert (finding.severity, finding.code) == ("warning", "sharing")
    golden(finding, numbers=False)


class Reader(nn.Module):
    """A model that computes its own loss from labels, if it is given any."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        logits = self.head(self.embed(input_ids))
        if labels is None:
            return logits, None
        return logits, F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def read(folder: Path, left_out: int) -> list[Event]:
    torch.manual_seed(0)
    ids = torch.randint(1, 20, (STEPS * 8, 12))
    labels = ids.clone()
    labels[:, :left_out] = -100
    rows = [{"input_ids": one, "labels": label} for one, label in zip(ids, labels)]
    with recording(folder) as recorded:
        model = Reader()
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in DataLoader(rows, batch_size=8):
            optimizer.zero_grad()
            model(**batch)[1].backward()
            optimizer.step()
    return recorded.events


def test_labels_of_which_some_are_left_out(tmp_path: Path) -> None:
    invariants = learn(read(tmp_path / "reference", 0)).invariants
    assert claims(invariants, "constant", of="equal", values={"input_ids and labels": True})
    assert not report_of(invariants, read(tmp_path / "masked", 5)).findings


@pytest.mark.parametrize("has_head", [False, True])
def test_a_part_more_that_is_restored_is_restored(tmp_path: Path, has_head: bool) -> None:
    def played(folder: Path, has_more: bool) -> list[Event]:
        torch.manual_seed(0)
        with recording(folder) as recorded:
            value = nn.Linear(4, 2 if has_more else 1)
            model = nn.Sequential(
                nn.Linear(4, 4), nn.Linear(4, 4) if has_more else nn.ReLU(), value
            )
            target = copy.deepcopy(model).requires_grad_(False)
            optimizer = torch.optim.Adam(model.parameters())
            for step in range(STEPS):
                optimizer.zero_grad()
                rows = torch.randn(8, 4)
                (model(rows) - target(rows) + 1).square().mean().backward()
                optimizer.step()
                if step % 4 == 3:
                    target.load_state_dict(model.state_dict())
        return recorded.events

    invariants = claims(learn(played(tmp_path / "a", False)), "restored", what="loads")
    assert invariants
    assert not report_of(invariants, played(tmp_path / "b", has_head)).findings
