"""A loop with metrics of torchmetrics."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import pytest
import torch

from tests.rules.ledger.programs import model


def accuracy(**options: Any) -> Any:
    """A metric of torchmetrics, which takes seconds to import."""
    torchmetrics = pytest.importorskip("torchmetrics")
    return torchmetrics.classification.MulticlassAccuracy(num_classes=2, **options)


def epochs(
    *,
    shares: bool,
    resets: Literal["end", "phase", "never"],
    count: int = 3,
    calls: bool = False,
) -> list[float]:
    """Epochs of four updates and two batches of evaluation; the values of the evaluation.

    shares: one metric for both phases. resets: after the evaluation, before each phase, or never.
    calls: use metric() in place of metric.update().
    """
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    in_training = accuracy(average="micro")
    in_evaluation = in_training if shares else accuracy(average="micro")
    values = []
    for _ in range(count):
        if resets == "phase":
            in_training.reset()
        trained.train()
        for _ in range(4):
            logits = _update(trained, in_training, calls=calls)
            optimizer.zero_grad()
            logits.square().mean().backward()
            optimizer.step()
        if resets == "phase":
            in_evaluation.reset()
        trained.eval()
        with torch.no_grad():
            for _ in range(2):
                _update(trained, in_evaluation, calls=calls)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values.append(float(in_evaluation.compute()))
        if resets == "end":
            in_training.reset()
            in_evaluation.reset()
    return values


def _update(trained: Any, metric: Any, *, calls: bool) -> torch.Tensor:
    logits: torch.Tensor = trained(torch.randn(8, 4))
    (metric if calls else metric.update)(logits, torch.randint(0, 2, (8,)))
    return logits
