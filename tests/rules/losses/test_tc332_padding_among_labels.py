"""TC332: labels that are a copy of the tokens, padding included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.batches import leaf
from tests.rules.loss_runs import F, tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

ROWS, COLUMNS = 8, 16
PADDED = {"padding": 0.4, "padding_label": 0}


def run(
    tokens: dict[str, Any] = PADDED,
    *,
    steps: int = 3,
    elements: int = ROWS * COLUMNS,
    ignored: float = 1 / COLUMNS,
    **args: Any,
) -> list[Event]:
    """Steps of a language model. ignored: share of the labels that the loss leaves out."""
    trace = net()
    shape = (ROWS, COLUMNS)
    leaves = {f"batch.{name}": leaf(shape=shape) for name in ("input_ids", "labels")}
    logits, labels = tensor((elements, 30)), tensor((elements,), "int64", ignored=ignored, min=0)
    given = {"input": logits, "target": labels, "reduction": "mean", "ignore_index": -100, **args}
    for _ in range(steps):
        trace.begin_step().batch(leaves=leaves, tokens=tokens).zero_grad().forward()
        trace.call(f"{F}cross_entropy", args=given).backward().optimizer_step()
    return trace.build()


BROKEN = run()


@pytest.mark.parametrize(
    "events", [BROKEN, run(elements=ROWS * (COLUMNS - 1), ignored=0.0), run(reduction="sum")]
)
def test_fires_at_the_first_loss(events: list[Event], golden: Golden) -> None:
    finding = fires("TC332", events)
    assert (finding.first_step, finding.violations) == (0, 1)
    golden(finding)
    assert mentions(finding, "40%", 0)


@pytest.mark.parametrize(
    "events",
    [
        run({"padding": 0.4}),  # with the label -100
        run({"padding": 0.02, "padding_label": 0}),
        run(steps=1),
        run(ignore_index=0),
        run(reduction="none"),
        run(weight=tensor((30,))),
        run(ignored=0.4 + 1 / COLUMNS),  # set by the model
        run(elements=ROWS),  # of whole texts
        net().steps(3).build(),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC332", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


@pytest.mark.parametrize(("label", "ignore_index"), [(0, -100), (-100, -100), (0, 0)])
def test_recorded_runs(tmp_path: Path, label: int, ignore_index: int) -> None:
    mask = (torch.arange(12) < torch.randint(4, 9, (32, 1))).long()
    ids = torch.randint(1, 20, (32, 12)) * mask
    rows = [
        {"input_ids": i, "attention_mask": m, "labels": i.masked_fill(m == 0, label)}
        for i, m in zip(ids, mask)
    ]
    model, loss = Reader(), nn.CrossEntropyLoss(ignore_index=ignore_index)
    with recording(tmp_path / "run") as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(rows, batch_size=8):
            optimizer.zero_grad()
            logits = model(batch["input_ids"][:, :-1])
            loss(logits.flatten(0, 1), batch["labels"][:, 1:].flatten()).backward()
            optimizer.step()
    if (label, ignore_index) == (0, -100):
        assert fires("TC332", recorded.events).first_step == 0
    else:
        assert quiet("TC332", recorded.events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
