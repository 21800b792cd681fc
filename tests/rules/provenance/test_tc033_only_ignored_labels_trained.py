"""TC033: inverted masks of losses over tokens, on real programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.checking import fires, net, quiet
from tests.collect.recording import recording, skip_without_sizes
from tests.golden import mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def positions(on_labels: int, on_ignored: int, **data: Any) -> dict[str, Any]:
    plain = {"root": 0, "shape": [4, 8], "trained": on_labels + on_ignored, "total": -1.0}
    counts = {"labels": 20, "trained_labels": on_labels, "trained_ignored": on_ignored}
    return {**plain, **counts, "ignored": 12, **data}


def run(*steps: dict[str, Any]) -> list[Event]:
    trace = net()
    for found in steps:
        trace.begin_step().zero_grad().forward().backward()
        trace.mark("label positions", positions=[found], compared=False)
        trace.optimizer_step()
    return trace.begin_step().build()


BROKEN = run(positions(0, 12), positions(0, 12))


def test_fires_in_the_second_step() -> None:
    finding = fires("TC033", run(positions(0, 12), positions(0, 11), positions(0, 12)))
    assert (finding.first_step, finding.violations) == (1, 1)
    assert mentions(finding.observed, 20, 11)


@pytest.mark.parametrize("found", [positions(20, 0), positions(20, 12), positions(0, 3)])
def test_quiet_on_labels_and_on_all_positions(found: dict[str, Any]) -> None:
    assert quiet("TC033", run(*[found] * 3)) is Verdict.HELD


def test_not_triggered_without_labels_of_this_shape() -> None:
    assert quiet("TC033", run(*[positions(0, 9, labels=None)] * 3)) is Verdict.NOT_TRIGGERED


# -- real programs

Masked = Callable[[Tensor, Tensor], Tensor]


def logs(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)


def by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    mask = labels >= 0
    return -(logs(logits, labels) * mask).sum() / mask.sum()


def by_hand_inverted(logits: Tensor, labels: Tensor) -> Tensor:
    mask = labels == -100
    return -(logs(logits, labels) * mask).sum() / mask.sum()


def next_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    return by_hand(logits[:, :-1], labels[:, 1:])


def next_tokens_inverted(logits: Tensor, labels: Tensor) -> Tensor:
    return by_hand_inverted(logits[:, :-1], labels[:, 1:])


def functional(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def each_inverted(logits: Tensor, labels: Tensor) -> Tensor:
    each = F.cross_entropy(logits.flatten(0, 1), labels.clamp(min=0).flatten(), reduction="none")
    mask = (labels < 0).flatten()
    return (each * mask).sum() / mask.sum()


def selective(logits: Tensor, labels: Tensor) -> Tensor:
    """Without log_softmax, as libraries for preferences compute it."""
    chosen = logits.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1) - logits.logsumexp(-1)
    return -(chosen * (labels >= 0)).sum() / 8


def selective_inverted(logits: Tensor, labels: Tensor) -> Tensor:
    chosen = logits.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1) - logits.logsumexp(-1)
    return -(chosen * (labels < 0)).sum() / 8


def everything(logits: Tensor, labels: Tensor) -> Tensor:
    """Prompts take part, as in some distillations."""
    return -logs(logits, labels).mean()


def trained(folder: Path, loss: Masked, *, named: bool = False) -> list[Event]:
    rows = []
    for row in range(40):
        ids = torch.randint(0, 12, (9,))
        labels = ids.clone()
        labels[: 2 + row % 4] = -100
        mask = (labels >= 0).long()
        rows.append({"ids": ids, "loss_mask": mask} if named else {"ids": ids, "labels": labels})
    skip_without_sizes()
    with recording(folder) as run:
        model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for batch in DataLoader(rows, batch_size=5, shuffle=True):  # type: ignore[arg-type]
            labels = (
                batch["labels"] if not named else batch["ids"].where(batch["loss_mask"] > 0, -100)
            )
            optimizer.zero_grad()
            loss(model(batch["ids"]), labels).backward()
            optimizer.step()
    return run.events


@pytest.mark.parametrize(
    "loss", [by_hand_inverted, next_tokens_inverted, each_inverted, selective_inverted]
)
@pytest.mark.parametrize("named", [False, True], ids=["labels", "loss_mask"])
def test_fires_on_inverted_masks(tmp_path: Path, loss: Masked, named: bool) -> None:
    assert fires("TC033", trained(tmp_path, loss, named=named)).first_step == 2


@pytest.mark.parametrize("loss", [by_hand, next_tokens, functional, selective, everything])
@pytest.mark.parametrize("named", [False, True], ids=["labels", "loss_mask"])
def test_quiet_on_masks_that_are_right(tmp_path: Path, loss: Masked, named: bool) -> None:
    assert quiet("TC033", trained(tmp_path, loss, named=named)) is Verdict.HELD
