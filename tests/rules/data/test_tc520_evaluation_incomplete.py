"""TC520: a final evaluation whose loader drops its last batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def evaluate(
    run: TraceBuilder, loader: str, drawn: int = 3, dropped: int = 20, **fields: Any
) -> None:
    """So many batches of 32 samples are evaluated, of a data set that has more."""
    run.train(False)
    for index in range(drawn):
        told = {
            "dataset": f"data of {loader}",
            "dataset_size": 96 + dropped,
            "dropped": dropped,
            "drawn": 32,
            "index": index,
            **fields,
        }
        run.batch(loader, **told).forward(grad=False)
    run.train(True)


def tried(loader: str = "loader2", **fields: Any) -> list[Event]:
    """Validation after each epoch, also after the last, and then a test."""
    run = net()
    for epoch in range(2):
        run.steps(3)
        evaluate(run, "loader1", epoch=epoch)
    evaluate(run, loader, **{"epoch": 2 if loader == "loader1" else 0, **fields})
    return run.build()


BROKEN = tried()


def test_fires_on_a_test_that_drops_its_end(golden: Golden) -> None:
    finding = fires("TC520", BROKEN)
    assert (finding.severity, finding.variables) == ("warning", ("loader2",))
    assert mentions(finding.message, 96, 116)
    golden(finding)


def test_quiet_on_a_test_of_all_rows_beside_a_validation_that_drops_some() -> None:
    assert quiet("TC520", tried(dropped=0)) is Verdict.HELD


def test_quiet_on_a_validation_during_training() -> None:
    assert quiet("TC520", tried("loader1")) is Verdict.NOT_TRIGGERED


@pytest.mark.parametrize(
    "fields", [{"drawn": 2}, {"replicas": 2}, {"dropped": 0}, {"dataset_size": 0}]
)
def test_quiet_on_an_early_end_and_on_what_is_not_known(fields: dict[str, Any]) -> None:
    assert quiet("TC520", tried(**fields)) is Verdict.HELD


def test_quiet_on_a_row_of_a_hundred_and_more() -> None:
    rows = {"drawn": 3, "dataset_size": 97}
    assert fires("TC520", tried(dropped=1, **rows)).variables == ("loader2",)
    run = net()
    run.steps(3)
    evaluate(run, "loader1", 4, 1, dataset_size=129)
    assert quiet("TC520", run.build()) is Verdict.HELD


def test_quiet_on_an_evaluation_that_training_follows() -> None:
    run = net()
    run.steps(3)
    evaluate(run, "loader2")
    assert fires("TC520", run.build()).variables == ("loader2",)
    assert quiet("TC520", run.steps(1).build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_the_training_loader() -> None:
    run = net()
    for _ in range(3):
        run.begin_step().batch(dataset="data of loader0", dropped=20, dataset_size=116, drawn=32)
        run.zero_grad().forward().backward().optimizer_step()
    evaluate(run, "loader0", epoch=1)
    assert quiet("TC520", run.build()) is Verdict.NOT_TRIGGERED


def test_a_look_at_one_batch_afterwards_hides_nothing() -> None:
    run = net()
    run.steps(3)
    evaluate(run, "loader2")
    evaluate(run, "loader2", 1, epoch=1)
    assert mentions(fires("TC520", run.build()).message, 96, 116)


def test_judges_nothing_where_steps_were_not_recorded() -> None:
    run = net()
    run.steps(3).skipped_steps(1)
    evaluate(run, "loader2")
    assert quiet("TC520", run.build()) is Verdict.NOT_TRIGGERED


@pytest.mark.parametrize("drops", [True, False])
def test_real_loaders(tmp_path: Path, drops: bool) -> None:
    x = torch.randn(130, 6)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    with recording(tmp_path) as run:
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=40, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for (x,) in DataLoader(TensorDataset(data.tensors[0][:70]), 32, drop_last=drops):
                model(x)
    if drops:
        assert mentions(fires("TC520", run.events).message, 64, 70)
    else:
        assert quiet("TC520", run.events) is Verdict.HELD
